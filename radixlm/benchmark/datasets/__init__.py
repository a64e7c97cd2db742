"""What is sent: datasets, each a function from a spec, a vocabulary and a seed to requests. Knows no server."""
