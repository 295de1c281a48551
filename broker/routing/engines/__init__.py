"""The algorithms that match topic patterns, one a file, all of them a TopicEngine."""
