// The same request in other languages.
//
// A sample is made of `{ origin, path, values, streams, hasKey, metadata, model, version }`: `origin` is the URL of the
// server, `path` that of the predictions, `metadata` what the Open Inference Protocol tells of the model.

import { asTensor, filePath, folded, holdsFile, python, shell } from "./values.js";

export const LANGUAGES = [
  { id: "curl", label: "curl", make: curl },
  { id: "python", label: "Python", make: pythonClient },
  { id: "httpx", label: "httpx", make: pythonHttp },
  { id: "javascript", label: "JavaScript", make: javascript },
  { id: "triton", label: "Triton", make: tritonclient, needsMetadata: true },
  { id: "grpc", label: "gRPC", make: grpcurl, needsMetadata: true },
];

function split(values) {
  const files = Object.entries(values).filter(([, value]) => holdsFile(value));
  return { files, others: Object.entries(values).filter(([, value]) => !holdsFile(value)) };
}

function asText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function curl({ origin, path, values, streams, hasKey }) {
  const lines = [`curl -s${streams ? "N" : ""} ${shell(origin + path)}`];
  if (hasKey) lines.push(`-H "Authorization: Bearer $GEARTRAIN_KEY"`);
  if (streams) lines.push("-H 'Accept: text/event-stream'");
  const { files, others } = split(values);
  if (files.length) {
    for (const [name, value] of files) for (const each of [value].flat()) lines.push(each instanceof File ? `-F ${shell(`${name}=@${filePath(each)}`)}` : `--form-string ${shell(`${name}=${each}`)}`);
    for (const [name, value] of others) if (value !== null) lines.push(`--form-string ${shell(`${name}=${asText(value)}`)}`);
  } else {
    lines.push("-H 'Content-Type: application/json'", `-d ${shell(folded({ input: values }, 2))}`);
  }
  return lines.join(" \\\n  ");
}

function pythonClient({ origin, values, streams, hasKey, model, version, isRoot }) {
  const hasFiles = Object.values(values).some((value) => [value].flat().some((each) => each instanceof File));
  const given = (value) => {
    if (value instanceof File) return `Path(${python(filePath(value))})`;
    if (Array.isArray(value) && value.some((each) => each instanceof File)) return `[${value.map(given).join(", ")}]`;
    return python(value, 8);
  };
  const isName = (name) => /^[A-Za-z_]\w*$/.test(name) && !KEYWORDS.has(name);
  const entries = Object.entries(values);
  const areNames = entries.every(([name]) => isName(name));
  const inputs = areNames ? entries.map(([name, value]) => `${name}=${given(value)}`) : [`**{${entries.map(([name, value]) => `${python(name)}: ${given(value)}`).join(", ")}}`];
  const line = inputs.join(", ");
  const args = line.length < 60 ? line : `\n${inputs.map((each) => `        ${each},\n`).join("")}    `;
  const parts = [python(origin), ...(hasKey ? [`key=os.environ["GEARTRAIN_KEY"]`] : [])];
  const imports = [...(hasKey ? ["import os"] : []), ...(hasFiles ? ["from pathlib import Path"] : [])];
  const chosen = [python(model), ...(version ? [`version=${python(version)}`] : [])].join(", ");
  const target = isRoot && !version ? "client" : `client.model(${chosen})`;
  const body = streams ? `    for chunk in ${target}.stream(${args}):\n        print(chunk, end="", flush=True)\n` : `    print(${target}.predict(${args}))\n`;
  return `${imports.length ? `${imports.join("\n")}\n\n` : ""}from geartrain import Client\n\nwith Client(${parts.join(", ")}) as client:\n${body}`;
}

const KEYWORDS = new Set("False None True and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield".split(" "));

function pythonHttp({ origin, path, values, streams, hasKey }) {
  const { files, others } = split(values);
  const headers = {};
  if (streams) headers.Accept = "text/event-stream";
  const parts = [python(origin + path)];
  if (files.length) {
    const given = files.flatMap(([name, value]) => [value].flat().map((each) => (each instanceof File ? `(${python(name)}, open(${python(filePath(each))}, "rb"))` : `(${python(name)}, (None, ${python(each)}))`)));
    parts.push(`files=[${given.join(", ")}]`);
    const texts = Object.fromEntries(others.filter(([, value]) => value !== null).map(([name, value]) => [name, asText(value)]));
    if (others.length) parts.push(`data=${python(texts, 4)}`);
  } else {
    parts.push(`json=${python({ input: values }, 4)}`);
  }
  const shownHeaders = Object.entries(headers).map(([name, value]) => `${python(name)}: ${python(value)}`);
  if (hasKey) shownHeaders.push(`"Authorization": f"Bearer {os.environ['GEARTRAIN_KEY']}"`);
  if (shownHeaders.length) parts.push(`headers={${shownHeaders.join(", ")}}`);
  parts.push("timeout=None");
  const call = (name) => `${name}(\n${parts.map((part) => `    ${part},\n`).join("")})`;
  const imports = [...(streams ? ["json"] : []), ...(hasKey ? ["os"] : [])].sort().map((name) => `import ${name}\n`);
  const head = `${imports.join("")}${imports.length ? "\n" : ""}import httpx  # pip install httpx\n\n`;
  if (!streams) return `${head}response = ${call("httpx.post")}\nresponse.raise_for_status()\nprediction = response.json()\nif prediction["status"] != "succeeded":\n    raise RuntimeError(prediction.get("error") or prediction["status"])\nprint(prediction["output"])\n`;
  return `${head}with ${call(`httpx.stream`).replace("httpx.stream(\n", 'httpx.stream(\n    "POST",\n')} as response:
    response.raise_for_status()
    event = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            event = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = json.loads(line.removeprefix("data: "))
            if event == "output":
                print(data["chunk"], end="", flush=True)
            elif event == "completed" and data["status"] != "succeeded":
                raise RuntimeError(data.get("error") or data["status"])
`;
}

function javascript({ origin, path, values, streams, hasKey }) {
  const { files, others } = split(values);
  const headers = [];
  if (!files.length) headers.push(`"Content-Type": "application/json"`);
  if (streams) headers.push(`Accept: "text/event-stream"`);
  if (hasKey) headers.push("Authorization: `Bearer ${key}`");
  const lines = [];
  if (files.length) {
    lines.push("const form = new FormData();");
    for (const [name, value] of files) for (const each of [value].flat()) lines.push(each instanceof File ? `form.append(${JSON.stringify(name)}, file); // ${filePath(each)}, of an <input type="file">` : `form.append(${JSON.stringify(name)}, ${JSON.stringify(each)});`);
    for (const [name, value] of others) if (value !== null) lines.push(`form.append(${JSON.stringify(name)}, ${JSON.stringify(asText(value))});`);
  }
  lines.push(`const response = await fetch(${JSON.stringify(origin + path)}, {`, `  method: "POST",`);
  if (headers.length) lines.push(`  headers: { ${headers.join(", ")} },`);
  lines.push(`  body: ${files.length ? "form" : `JSON.stringify(${folded({ input: values }, 2)})`},`, "});");
  lines.push("if (!response.ok) throw new Error(await response.text());");
  if (!streams) {
    lines.push("const prediction = await response.json();", `if (prediction.status !== "succeeded") throw new Error(prediction.error ?? prediction.status);`, "console.log(prediction.output);");
    return `${lines.join("\n")}\n`;
  }
  return `${lines.join("\n")}
let rest = "";
for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
  const events = (rest + text).split("\\n\\n");
  rest = events.pop();
  for (const event of events) {
    const [, name, data] = /^event: (.*)\\ndata: (.*)$/.exec(event) ?? [];
    if (name === "output") console.log(JSON.parse(data).chunk);
    if (name === "completed") console.log(JSON.parse(data).status);
  }
}
`;
}

const NUMPY = { BOOL: "bool", FP16: "float16", FP32: "float32", FP64: "float64", BYTES: "object" };

function numpyType(datatype) {
  return NUMPY[datatype] ?? datatype.toLowerCase();
}

function tensorsOf({ metadata, values }) {
  return metadata.inputs.filter((about) => values[about.name] !== undefined && values[about.name] !== null).map((about) => asTensor(about, values[about.name]));
}

function tritonclient({ origin, values, hasKey, metadata, model, version }) {
  const lines = ["import numpy as np"];
  if (hasKey) lines.unshift("import os", "");
  const at = new URL(origin);
  const isSecure = at.protocol === "https:";
  lines.push("import tritonclient.http as triton  # pip install 'tritonclient[http]'", "");
  lines.push(`client = triton.InferenceServerClient(${python(at.host + at.pathname.replace(/\/$/, ""))}${isSecure ? ", ssl=True" : ""})`, "inputs = []");
  for (const { name, datatype, shape, data, files } of tensorsOf({ metadata, values })) {
    const listed = data.map((each) => (files ? `open(${python(each)}, "rb").read()` : datatype === "BYTES" ? `${python(each)}.encode()` : python(each)));
    const array = `np.array([${listed.join(", ")}], dtype=np.${numpyType(datatype)}${datatype === "BOOL" ? "_" : datatype === "BYTES" ? "_" : ""})`;
    lines.push(`tensor = triton.InferInput(${python(name)}, ${python(shape)}, ${python(datatype)})`, `tensor.set_data_from_numpy(${array}${shape.length > 1 ? `.reshape(${python(shape)})` : ""})`, "inputs.append(tensor)");
  }
  const options = [python(model), "inputs"];
  if (version) options.push(`model_version=${python(version)}`);
  if (hasKey) options.push(`headers={"Authorization": f"Bearer {os.environ['GEARTRAIN_KEY']}"}`);
  lines.push(`result = client.infer(${options.join(", ")})`, `for output in result.get_response()["outputs"]:`, `    print(output["name"], result.as_numpy(output["name"]))`);
  return `${lines.join("\n")}\n`;
}

const CONTENTS = { BOOL: "bool_contents", INT8: "int_contents", INT16: "int_contents", INT32: "int_contents", INT64: "int64_contents", UINT8: "uint_contents", UINT16: "uint_contents", UINT32: "uint_contents", UINT64: "uint64_contents", FP32: "fp32_contents", FP64: "fp64_contents", BYTES: "bytes_contents" };

function grpcurl({ origin, values, hasKey, metadata, model, version }) {
  const at = new URL(origin);
  const tensors = tensorsOf({ metadata, values });
  const isFile = tensors.some(({ files }) => files);
  const inputs = tensors.map(({ name, datatype, shape, data, files }) => ({
    name,
    datatype,
    shape,
    contents: { [CONTENTS[datatype] ?? "bytes_contents"]: datatype === "BYTES" ? data.map((each) => (files ? `$(base64 -w0 ${shell(each)})` : base64(each))) : data },
  }));
  const message = folded({ model_name: model, ...(version ? { model_version: version } : {}), inputs });
  const port = at.port || (at.protocol === "https:" ? "443" : "80");
  const lines = ["grpcurl"];
  if (at.protocol !== "https:") lines.push("-plaintext");
  if (hasKey) lines.push(`-H "Authorization: Bearer $GEARTRAIN_KEY"`);
  lines.push(isFile ? "-d @" : `-d ${shell(message)}`, `${at.hostname}:${port}`, "inference.GRPCInferenceService/ModelInfer");
  return isFile ? `${lines.join(" ")} <<END\n${message}\nEND\n` : `${lines.join(" ")}\n`;
}

function base64(text) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}
