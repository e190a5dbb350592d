// Requests of OpenAI's API, as its official clients and curl send them.
//
// A sample is made of `{ origin, endpoint, body, hasKey }`: `endpoint` is `chat` or `embeddings`, `body` what is sent.

import { folded, python, shell } from "./values.js";

export const OPENAI_LANGUAGES = [
  { id: "openai-python", label: "Python", make: pythonClient },
  { id: "openai-javascript", label: "JavaScript", make: javascriptClient },
  { id: "openai-curl", label: "curl", make: curl },
];

const ENDPOINTS = {
  chat: { path: "chat/completions", method: "chat.completions.create" },
  embeddings: { path: "embeddings", method: "embeddings.create" },
};

// The parameters that the client for Python has. It sends others if they are in `extra_body`.
const KNOWN = new Set(
  (
    "model messages input dimensions frequency_penalty logit_bias logprobs max_completion_tokens max_tokens metadata n parallel_tool_calls " +
    "presence_penalty reasoning_effort response_format seed stop temperature tool_choice tools top_logprobs top_p user verbosity"
  ).split(" "),
);

function pythonClient({ origin, endpoint, body, hasKey }) {
  const entries = Object.entries(body);
  const known = entries.filter(([name]) => KNOWN.has(name)).map(([name, value]) => `${name}=${python(value, 4)}`);
  const others = entries.filter(([name]) => !KNOWN.has(name));
  if (others.length) known.push(`extra_body=${python(Object.fromEntries(others), 4)}`);
  const streams = endpoint === "chat";
  if (streams) known.push("stream=True");
  const key = hasKey ? `os.environ["GEARTRAIN_KEY"]` : python("none");
  const call = `client.${ENDPOINTS[endpoint].method}(\n${known.map((each) => `    ${each},\n`).join("")})`;
  const head = `${hasKey ? "import os\n\n" : ""}import openai  # pip install openai\n\nclient = openai.OpenAI(base_url=${python(`${origin}/v1`)}, api_key=${key})\n`;
  if (!streams) return `${head}answer = ${call}\nfor each in answer.data:\n    print(each.index, len(each.embedding), each.embedding[:4])\n`;
  return `${head}stream = ${call}
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

function javascriptClient({ origin, endpoint, body, hasKey }) {
  const streams = endpoint === "chat";
  const key = hasKey ? "process.env.GEARTRAIN_KEY" : `"none"`;
  const head = `import OpenAI from "openai"; // npm install openai\n\nconst client = new OpenAI({ baseURL: ${JSON.stringify(`${origin}/v1`)}, apiKey: ${key} });\n`;
  const call = `await client.${ENDPOINTS[endpoint].method}(${folded(streams ? { ...body, stream: true } : body)});\n`;
  if (!streams) return `${head}const answer = ${call}for (const { index, embedding } of answer.data) console.log(index, embedding.length, embedding.slice(0, 4));\n`;
  return `${head}const stream = ${call}for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");\n`;
}

function curl({ origin, endpoint, body, hasKey }) {
  const streams = endpoint === "chat";
  const lines = [`curl -s${streams ? "N" : ""} ${shell(`${origin}/v1/${ENDPOINTS[endpoint].path}`)}`];
  if (hasKey) lines.push(`-H "Authorization: Bearer $GEARTRAIN_KEY"`);
  lines.push("-H 'Content-Type: application/json'", `-d ${shell(folded(streams ? { ...body, stream: true } : body, 2))}`);
  return lines.join(" \\\n  ");
}
