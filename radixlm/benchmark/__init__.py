"""Load generators and what they measure. Speaks HTTP to a server and knows nothing of how one is built."""
