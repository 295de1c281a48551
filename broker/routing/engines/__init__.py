"""The engines that match topic patterns, each a TopicEngine (see `index`)."""
