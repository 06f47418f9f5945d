"""Several processes that work on one job, started by torchrun: their messages, gradients, BatchNorm and results."""
