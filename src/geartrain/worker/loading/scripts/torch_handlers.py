"""Classes that handlers of TorchServe are derived from, with the torch of the author."""

from __future__ import annotations

import base64
import importlib
import io
import time
from pathlib import Path
from typing import Any

import torch

from geartrain.worker.loading.scripts.torchserve_names import (
    Context,
    list_classes_from_module,
    load_label_mapping,
    map_class_to_label,
)


class BaseHandler:
    """Loads TorchScript, weights of a model in Python, or ONNX, and runs `preprocess`, `inference`, `postprocess`."""

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: Any = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: Any = None
        self.map_location: str | None = None
        self.model_yaml_config: dict[str, Any] = {}
        self.explain = False
        self.target = 0

    def initialize(self, context: Context) -> None:
        """Load the model onto its device. Raises `RuntimeError` for an archive without one."""
        properties = context.system_properties
        self.model_yaml_config = context.model_yaml_config
        gpu = properties["gpu_id"]
        has_gpu = torch.cuda.is_available() and gpu is not None
        self.map_location = "cuda" if has_gpu else "cpu"
        self.device = torch.device(f"cuda:{gpu}" if has_gpu else "cpu")
        self.manifest = context.manifest
        model = self.manifest["model"]
        folder = Path(str(properties["model_dir"]))
        weights = model.get("serializedFile")
        self.model_pt_path = str(folder / Path(weights).name) if weights else None
        self.model = self._loaded(folder, model.get("modelFile"))
        self.mapping = load_label_mapping(str(folder / "index_to_name.json"))
        self.initialized = True

    def _loaded(self, folder: Path, model_file: str | None) -> Any:
        if model_file:
            return self._load_pickled_model(str(folder), model_file, self.model_pt_path)
        if self.model_pt_path is None:
            raise RuntimeError("the manifest has no serializedFile and no modelFile, and the handler loads no model")
        if self.model_pt_path.endswith(".onnx"):
            onnxruntime = importlib.import_module("onnxruntime")
            return onnxruntime.InferenceSession(self.model_pt_path, providers=onnxruntime.get_available_providers())
        model = torch.jit.load(self.model_pt_path, map_location=self.device)
        model.eval()
        return model

    def _load_pickled_model(self, _model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        """Make the one class of a file in the folder, with its weights."""
        module = importlib.import_module(Path(model_file).stem)
        classes = [each for each in list_classes_from_module(module) if issubclass(each, torch.nn.Module)]
        if len(classes) != 1:
            raise RuntimeError(f"{model_file} has {len(classes)} modules of torch; it has one, which is the model")
        model = classes[0]()
        if model_pt_path:
            model.load_state_dict(torch.load(model_pt_path, map_location=self.device))
        model.to(self.device)
        model.eval()
        return model

    def preprocess(self, data: Any) -> Any:
        """Make a tensor of the requests."""
        return torch.as_tensor(data, device=self.device)

    def inference(self, data: Any, *arguments: Any, **named: Any) -> Any:
        """Run the model without gradients."""
        with torch.inference_mode():
            return self.model(data.to(self.device), *arguments, **named)

    def postprocess(self, data: Any) -> Any:
        """Make a list of the outputs, one for each request."""
        return data.tolist()

    def handle(self, data: Any, context: Context) -> Any:
        """Answer the requests of a call: a list of as many outputs."""
        begin = time.perf_counter()
        self.context = context
        output = self.postprocess(self.inference(self.preprocess(data)))
        context.metrics.add_time("HandlerTime", round((time.perf_counter() - begin) * 1e3, 2))
        return output

    def get_device(self) -> Any:
        """Return the device."""
        return self.device


class VisionHandler(BaseHandler):
    """Takes pictures as files, in base64, or as lists of numbers."""

    image_processing: Any = None
    """Makes a tensor of a picture of Pillow."""

    def preprocess(self, data: Any) -> Any:
        """Make a batch of the pictures of the requests."""
        return torch.stack([self._picture(row.get("data") or row.get("body")) for row in data]).to(self.device)

    def _picture(self, given: Any) -> Any:
        if isinstance(given, str):
            given = base64.b64decode(given)
        if not isinstance(given, (bytes, bytearray)):
            return torch.FloatTensor(given)
        image = importlib.import_module("PIL.Image").open(io.BytesIO(given))
        return self.image_processing(image)


class _ImageNetHandler(VisionHandler):
    """Prepares pictures as those of ImageNet."""

    def initialize(self, context: Context) -> None:
        """Load the model."""
        super().initialize(context)
        if self.image_processing is None:
            transforms = importlib.import_module("torchvision.transforms")
            self.image_processing = transforms.Compose(
                [
                    transforms.Resize(256),
                    transforms.CenterCrop(224),
                    transforms.ToTensor(),
                    transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
                ]
            )


class ImageClassifier(_ImageNetHandler):
    """Tells the most probable classes of a picture, by their names where index_to_name.json has them."""

    topk = 5

    def set_max_result_classes(self, topk: int) -> None:
        """Set the number of classes of an answer."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """Return the number of classes of an answer."""
        return self.topk

    def postprocess(self, data: Any) -> Any:
        """Make an object of probabilities by class for each picture."""
        values, classes = torch.topk(torch.softmax(data, dim=1), min(self.topk, data.shape[1]), dim=1)
        return map_class_to_label(values.tolist(), self.mapping, classes.tolist())


class ImageSegmenter(_ImageNetHandler):
    """Gives for each pixel of a picture the most probable class and its probability."""

    def postprocess(self, data: Any) -> Any:
        """Make a list of rows of pixels for each picture; each pixel is a pair."""
        values, classes = torch.max(torch.softmax(data["out"], dim=1), dim=1)
        return torch.stack([classes.type(values.dtype), values], dim=3).tolist()


class ObjectDetector(VisionHandler):
    """Gives the boxes of the objects in a picture by the names of their classes, with their scores."""

    threshold = 0.5

    def initialize(self, context: Context) -> None:
        """Load the model; a picture becomes a tensor as it is."""
        super().initialize(context)
        if self.image_processing is None:
            self.image_processing = importlib.import_module("torchvision.transforms").ToTensor()

    def postprocess(self, data: Any) -> Any:
        """Make a list of the objects above `threshold` for each picture."""
        return [self._objects(each) for each in data]

    def _objects(self, found: Any) -> list[dict[str, Any]]:
        is_likely = found["scores"] >= self.threshold
        labels, boxes, scores = (found[key][is_likely].tolist() for key in ("labels", "boxes", "scores"))
        return [
            {**map_class_to_label([[box]], self.mapping, [[label]])[0], "score": score}
            for label, box, score in zip(labels, boxes, scores, strict=True)
        ]
