"""Trains a small network on drawings of shapes, in some seconds: `python make_weights.py`."""

import math
import random
from pathlib import Path

import numpy as np
import torch
from network import LABELS, SIDE, Network
from PIL import Image, ImageDraw
from torch.nn.functional import cross_entropy

CORNERS = {"triangle": 3, "square": 4, "circle": 60}


def draw(label: str, chance: random.Random, side: int = SIDE) -> Image.Image:
    """Draw a shape of any size, place and turn on paper of any shade, and with noise."""
    paper, ink = (40, 200) if chance.random() < 0.5 else (215, 60)
    picture = Image.new("L", (4 * side, 4 * side), paper + chance.randint(-30, 30))
    radius = 2 * side * chance.uniform(0.45, 0.85)
    x, y = (2 * side + chance.uniform(-1, 1) * (2 * side - radius) for _ in "xy")
    corners, turn = CORNERS[label], chance.uniform(0, 2 * math.pi)
    angles = [turn + 2 * math.pi * corner / corners for corner in range(corners)]
    outline = [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]
    ImageDraw.Draw(picture).polygon(outline, fill=ink + chance.randint(-30, 30))
    return picture.resize((side, side), Image.Resampling.BOX)


def make_weights(file: Path, pictures: int = 1500, epochs: int = 8) -> None:
    """Write the weights of a network that tells the shapes apart."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for so small a network, several threads cost more than they bring
    torch.manual_seed(0)
    chance = random.Random(0)  # noqa: S311 - for drawings, not for secrets
    labels = torch.tensor([chance.randrange(len(LABELS)) for _ in range(pictures)])
    drawn = np.stack([np.asarray(draw(LABELS[label], chance), np.float32) / 255 for label in labels.tolist()])
    inputs = torch.from_numpy(drawn)[:, None]
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for part in torch.randperm(pictures).split(64):
            loss = cross_entropy(network(inputs[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = (network(inputs).argmax(dim=1) == labels).float().mean()
        print(f"epoch {epoch + 1} of {epochs}: right on {right:.1%}")
    torch.set_num_threads(threads)
    file.parent.mkdir(exist_ok=True)
    torch.save(network.state_dict(), file)


if __name__ == "__main__":
    make_weights(Path(__file__).parent / "weights" / "shapes.pt")
