"""Training: the torch dataset and loader. The lowest floor that may import torch."""
