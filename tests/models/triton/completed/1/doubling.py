import numpy as np


def double(tensor):
    return np.from_dlpack(tensor) * 2
