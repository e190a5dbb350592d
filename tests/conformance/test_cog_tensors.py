"""A model of tensors behind Cog's HTTP API: nested arrays in JSON, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.servers import LiveServer, Serve

MODEL = """
    from __future__ import annotations

    from typing import NamedTuple, Optional

    import numpy as np
    from jaxtyping import Float32, UInt8
    from numpy.typing import NDArray

    import geartrain


    class Result(NamedTuple):
        doubled: Float32[np.ndarray, "batch 3"]
        mean: Float32[np.ndarray, ""]
        shapes: str


    class Runner(geartrain.BaseRunner):
        def run(
            self,
            x: Float32[np.ndarray, "batch 3"],
            image: Optional[UInt8[np.ndarray, "height width 3"]] = None,
            words: NDArray[np.str_] = ["a", "b"],
            blobs: list[bytes] = [],
            fault: str = "",
        ) -> Result:
            if fault == "nan":
                x = x * np.nan
            if fault == "shape":
                x = x[:, :2]
            if fault == "type":
                x = np.array([["a", "b", "c"]])
            shape = None if image is None else image.shape
            parameters = geartrain.current_scope().parameters
            text = f"{x.shape} {x.dtype} {shape} {words.tolist()} {blobs} {parameters}"
            return Result(x if fault == "type" else x * 2, x.mean() if fault != "type" else 0.0, text)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(serve_shared: Serve) -> AsyncIterator[LiveServer]:
    async with serve_shared(MODEL) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def faults(server: LiveServer, **values: Any) -> list[tuple[str, str]]:
    """What a client is told of a wrong input, as place and sentence."""
    response = await server.client.post("/predictions", json={"input": {"x": [[1, 2, 3]], **values}})
    assert response.status_code == 422, response.text
    return [("/".join(error["loc"]), error["msg"]) for error in response.json()["detail"]]


async def test_nested_arrays_in_and_out(server: LiveServer) -> None:
    body = await server.predict({"x": [[1, 2, 3], [0.1, 0, -1]], "image": [[[0, 255, 7]]], "blobs": ["é"]})
    assert body["status"] == "succeeded"
    output = body["output"]
    assert output["doubled"] == [[2.0, 4.0, 6.0], [0.20000000298023224, 0.0, -2.0]]  # float32, widened
    assert output["mean"] == pytest.approx(5.1 / 6)
    assert output["shapes"] == r"(2, 3) float32 (1, 1, 3) ['a', 'b'] [b'\xc3\xa9'] {}"


async def test_no_rows(server: LiveServer) -> None:
    body = await server.predict({"x": [], "image": [], "words": []})
    assert body["status"] == "failed"  # the mean of nothing is NaN
    assert body["error"] == "OutputError: output.mean is NaN, which JSON cannot carry; return None or a string instead"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"x": [[1, 2]]}, [("body/input/x/0", "2 elements in an array that must have 3")]),
        ({"x": [[1, 2, "3"]]}, [("body/input/x/0/2", '"3" is not of type "number"')]),
        ({"x": [[1, 2, 1e39]]}, [("body/input/x/0/2", "1e+39 is beyond the range of FP32")]),
        ({"x": 7}, [("body/input/x", '7 is not of type "array"')]),
        ({"image": [[[0, 256, 1]]]}, [("body/input/image/0/0/1", "256 is not in the range of UINT8: 0 to 255")]),
        (
            {"image": [[[0, 0, 0]], []]},
            [("body/input/image/1", "0 elements, where the arrays before it have 1: the rows must be equally long")],
        ),
        ({"words": [["a"], "b"]}, [("body/input/words/1", '"b" is not of type "array"')]),
        ({"blobs": [1]}, [("body/input/blobs/0", '1 is not of type "string"')]),
        (
            {"x": [[1, 2, True]], "words": 1},
            [
                ("body/input/words", '1 is not of type "string"'),
                ("body/input/x/0/2", 'true is not of type "number"'),
            ],
        ),
    ],
    ids=str,
)
async def test_t5_wrong_input_is_422_with_its_place(
    server: LiveServer, values: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert await faults(server, **values) == expected


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("nan", "output.doubled[0][0] is NaN, which JSON cannot carry; return None or a string instead"),
        ("shape", "output.doubled has the shape [1, 2], and [-1, 3] is declared"),
        ("type", "output.doubled is an array of text, and FP32 is declared"),
    ],
)
async def test_wrong_output_fails_the_prediction(server: LiveServer, fault: str, error: str) -> None:
    body = await server.predict({"x": [[1, 2, 3]], "fault": fault})
    assert (body["status"], body["error"]) == ("failed", f"OutputError: {error}")
    assert (await server.predict({"x": [[1, 2, 3]]}))["status"] == "succeeded"


async def test_large_array(server: LiveServer) -> None:
    rows = [[float(number), 0.5, -0.5] for number in range(50_000)]
    body = await server.predict({"x": rows})
    assert body["output"]["doubled"][-1] == [99_998.0, 1.0, -1.0]
    assert math.isclose(body["output"]["mean"], 24_999.5 / 3, rel_tol=1e-4)


async def test_openapi_says_what_the_tensors_are(server: LiveServer) -> None:
    document = (await server.client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    x = schemas["Input"]["properties"]["x"]
    assert x["x-tensor"] == {"datatype": "FP32", "shape": [-1, 3]}
    assert x["items"] == {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}
    assert schemas["Input"]["required"] == ["x"]
    assert schemas["Input"]["properties"]["words"]["default"] == ["a", "b"]
    output = schemas["Output"]["properties"]
    assert output["mean"] == {"type": "number", "x-tensor": {"datatype": "FP32", "shape": []}, "title": "Mean"}
