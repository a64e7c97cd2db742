"""Where tests of device kernels run: on the GPU, or on the CPU with Triton's interpreter when TRITON_INTERPRET=1."""

import importlib.util
import os

import pytest
import torch

CUDA = torch.cuda.is_available()
INTERPRETED = not CUDA and os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICE = torch.device("cuda" if CUDA else "cpu")

needs_kernels = pytest.mark.skipif(not CUDA and not INTERPRETED, reason="no CUDA device")
needs_cuda = pytest.mark.skipif(not CUDA, reason="no CUDA device")
