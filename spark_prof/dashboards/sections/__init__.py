"""What a report says of each topic, and the topic's figures."""
