import os

import torch

# Two workers share two cores: threads inside a worker would only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
