"""What an operator does with messages: look at them, take them, move them."""
