"""Models in ONNX files, made by hand."""

from __future__ import annotations

from pathlib import Path

import onnx


def save_scale(path: Path, factor: float) -> None:
    """Write a model that multiplies rows of three numbers."""
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = make.make_graph(
        [make.make_node("Mul", ["x", "k"], ["y"])],
        "scale",
        [make.make_tensor_value_info("x", kind, ["n", 3])],
        [make.make_tensor_value_info("y", kind, ["n", 3])],
        [make.make_tensor("k", kind, [], [factor])],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)])
    model.ir_version = 8
    path.parent.mkdir(parents=True)
    onnx.save(model, str(path))
