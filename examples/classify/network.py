"""The network of the recipe, which `run.py` serves and `make_weights.py` trains."""

import torch
from torch import nn

LABELS = ("circle", "square", "triangle")
SIDE = 32  # pixels


class Network(nn.Sequential):
    """Pictures of shape [n, 1, SIDE, SIDE], from 0 to 1, to scores of shape [n, labels]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (SIDE // 8) ** 2, len(LABELS)),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return super().forward(pictures - 0.5)
