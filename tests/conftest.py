"""One thread a process: the suite runs in parallel, and two threads on a busy core only spin."""

import torch

torch.set_num_threads(1)
