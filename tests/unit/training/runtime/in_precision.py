"""`python -m training` in the precision that the first argument names."""

import sys

import torch

from training.cli import main

torch.set_default_dtype(getattr(torch, sys.argv[1]))
sys.argv = ["training", *sys.argv[2:]]
main()
