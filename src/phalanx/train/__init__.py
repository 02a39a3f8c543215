"""Inside the training process: experiments, and what trains them."""
