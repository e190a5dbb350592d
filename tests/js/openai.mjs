// Asks a server by OpenAI's client for Node.js: node openai.mjs PACKAGE, a package of package.json. The server is that of
// `python -m tests.clients`, in the variable CLIENTS_SERVER.

import assert from "node:assert/strict";
import test from "node:test";

const PACKAGE = process.argv[2] ?? "openai-6";
const { default: OpenAI, toFile, ...errors } = await import(PACKAGE);
const { url, key, reading, never } = JSON.parse(process.env.CLIENTS_SERVER);
const SETTLED = 150; // milliseconds after which all requests that have ended are counted
const WEATHER = { type: "function", function: { name: "weather", parameters: { type: "object" } } };
const CALL = [
  { reasoning: "hm" },
  { tool_calls: [{ index: 0, id: "call_1", name: "weather", arguments: '{"city"' }] },
  { tool_calls: [{ index: 0, arguments: ': "Ulm"}' }] },
];

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key });

function play(...pieces) {
  return JSON.stringify(pieces.map((piece) => (typeof piece === "string" ? { content: piece } : piece)));
}

function chat(text, more = {}) {
  return { model: "player", messages: [{ role: "user", content: text }], ...more };
}

async function count() {
  await new Promise((done) => setTimeout(done, SETTLED));
  const response = await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${key}` } });
  const lines = (await response.text()).split("\n").filter((line) => line.startsWith("geartrain_requests_total{"));
  const counted = lines.filter((line) => line.includes('protocol="openai"'));
  return counted.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

test(`${PACKAGE}: models`, async () => {
  const names = [];
  for await (const model of client.models.list()) {
    names.push(model.id);
  }
  assert.ok(names.includes("player"));
  assert.equal((await client.models.retrieve("player")).owned_by, "geartrain");
});

test(`${PACKAGE}: chat`, async () => {
  const answer = await client.chat.completions.create(chat(play("one ", "two"), { n: 2, stop: ["w"] }));
  assert.deepEqual(answer.choices.map((choice) => choice.message.content), ["one t", "one t"]);
  assert.ok(answer._request_id);
  const stream = await client.chat.completions.create(
    chat(play("a", "b"), { stream: true, stream_options: { include_usage: true } }),
  );
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, "ab");
  assert.ok(usage.prompt_tokens > 0);
  assert.equal(await client.chat.completions.stream(chat(play("a", "b"))).finalContent(), "ab");
});

test(`${PACKAGE}: tools`, async () => {
  const answer = await client.chat.completions.create(chat(play(...CALL), { tools: [WEATHER] }));
  assert.equal(answer.choices[0].message.tool_calls[0].function.arguments, '{"city": "Ulm"}');
  const final = await client.chat.completions.stream(chat(play(...CALL), { tools: [WEATHER] })).finalChatCompletion();
  assert.equal(final.choices[0].message.tool_calls[0].function.arguments, '{"city": "Ulm"}');
});

test(`${PACKAGE}: forms`, async () => {
  const schema = { type: "object", properties: { a: { type: "integer" } }, required: ["a"], additionalProperties: false };
  const response_format = { type: "json_schema", json_schema: { name: "Answer", strict: true, schema } };
  const answer = await client.chat.completions.parse(chat(play('{"a": ', "5}"), { response_format }));
  assert.equal(answer.choices[0].message.content, '{"a": 5}');
  await assert.rejects(client.chat.completions.parse(chat(play("[]"), { response_format })), /response_format/);
});

test(`${PACKAGE}: choices of a stream, logprobs and pictures`, async () => {
  const said = ["", ""];
  for await (const chunk of await client.chat.completions.create(chat(play("a", "b"), { n: 2, stream: true }))) {
    for (const choice of chunk.choices) {
      said[choice.index] += choice.delta.content ?? "";
    }
  }
  assert.deepEqual(said, ["ab", "ab"]);
  const token = { content: "x", logprobs: [{ token: "x", logprob: -0.1, top: [] }] };
  const counted = await client.chat.completions.create(chat(play(token), { logprobs: true }));
  assert.equal(counted.choices[0].logprobs.content[0].token, "x");
  const content = [
    { type: "text", text: "see " },
    { type: "image_url", image_url: { url: "data:text/plain,a%20cat" } },
  ];
  const seen = await client.chat.completions.create({ model: "viewer", messages: [{ role: "user", content }] });
  assert.equal(seen.choices[0].message.content, "see <image> ['a cat']");
});

test(`${PACKAGE}: token ids`, async () => {
  const text = await client.completions.create({ model: "tokens", prompt: [[1, 2], [3]] });
  assert.deepEqual(text.choices.map((choice) => choice.text), ["[1, 2]", "[3]"]);
  const vectors = await client.embeddings.create({ model: "embed-tokens", input: [[4, 5], [7]] });
  assert.deepEqual(vectors.data.map((one) => [...one.embedding]), [[2, 9], [1, 7]]);
});

test(`${PACKAGE}: tools of responses, and a completion as a stream`, async () => {
  const tools = [{ type: "function", name: "weather", parameters: { type: "object" }, strict: false }];
  const final = await client.responses.stream({ model: "player", input: play(...CALL), tools }).finalResponse();
  assert.deepEqual(final.output.map((item) => item.type), ["reasoning", "function_call"]);
  let said = "";
  for await (const chunk of await client.completions.create({ model: "writer", prompt: "a b", stream: true })) {
    said += chunk.choices[0].text;
  }
  assert.equal(said, "a b ");
});

test(`${PACKAGE}: a run that fails in the middle`, async () => {
  const text = play("begun", { fail: "it went wrong later" });
  const stream = await client.chat.completions.create(chat(text, { stream: true })).catch((error) => error);
  if (stream instanceof errors.APIError) { // it has failed before its first piece was sent
    assert.match(stream.message, /it went wrong later/);
    return;
  }
  await assert.rejects(async () => {
    for await (const chunk of stream) {
      assert.ok(chunk.id);
    }
  }, /it went wrong later/);
});

test(`${PACKAGE}: completions and responses`, async () => {
  const text = await client.completions.create({ model: "writer", prompt: ["a b c", "d"], max_tokens: 2 });
  assert.deepEqual(text.choices.map((choice) => choice.text), ["a b ", "d "]);
  assert.equal((await client.responses.create({ model: "player", input: play("a", "b") })).output_text, "ab");
  const stream = client.responses.stream({ model: "player", input: play("a", "b") });
  assert.equal((await stream.finalResponse()).output_text, "ab");
  let said = "";
  for await (const event of await client.responses.create({ model: "player", input: play("a", "b"), stream: true })) {
    said += event.type === "response.output_text.delta" ? event.delta : "";
  }
  assert.equal(said, "ab");
});

test(`${PACKAGE}: vectors, scores, sound and pictures`, async () => {
  const vectors = await client.embeddings.create({ model: "embed", input: ["ab"] });
  assert.deepEqual([...vectors.data[0].embedding], [2, 0.5, -1]);
  assert.ok((await client.moderations.create({ model: "judge", input: "a fight" })).results[0].flagged);
  const file = await toFile(Buffer.from("good morning"), "speech.wav");
  assert.equal((await client.audio.transcriptions.create({ model: "listener", file })).text, "good morning");
  const kinds = [];
  for await (const event of await client.audio.transcriptions.create({ model: "listener", file, stream: true })) {
    kinds.push(event.type);
  }
  assert.equal(kinds.at(-1), "transcript.text.done");
  const spoken = await client.audio.speech.create({ model: "speaker", input: "hello", voice: "bob" });
  assert.equal(await spoken.text(), "bob: hello");
  const made = await client.images.generate({ model: "painter", prompt: "a cat", size: "1024x1024" });
  assert.equal(Buffer.from(made.data[0].b64_json, "base64").toString(), "a cat 1024x1024 ");
  const image = await toFile(Buffer.from("a dog"), "dog.png");
  const changed = await client.images.edit({ model: "painter", prompt: "a cat and", image });
  assert.equal(Buffer.from(changed.data[0].b64_json, "base64").toString(), "a cat and auto a dog");
});

const FAULTS = [
  ["invalid input", 400, /temperature: 5/, 1, { temperature: 5 }],
  ["no such key", 401, /key/, 1, {}, "gt_wrong"],
  ["key for something else", 403, /predict/, 1, {}, reading],
  ["unknown model", 404, /does not exist/, 1, { model: "nobody" }],
  ["large body", 413, /bytes/, 1, { text: "x".repeat(1_200_000) }],
  ["full queue", 429, /./, 3, { model: "busy" }],
  ["failed run", 500, /it went wrong/, 1, { text: play({ fail: "it went wrong" }) }],
  ["not ready", 503, /./, 3, { model: "late" }],
  ["time is up", 504, /./, 1, { model: "slow", text: play({ wait: never }) }],
];

for (const [name, status, said, requests, { text = "hi", ...more }, own = key] of FAULTS) {
  test(`${PACKAGE}: ${name}`, async () => {
    const before = await count();
    const asker = new OpenAI({ baseURL: `${url}/v1`, apiKey: own });
    await assert.rejects(asker.chat.completions.create(chat(text, more)), (error) => {
      assert.ok(error instanceof errors.APIError);
      assert.equal(error.status, status);
      assert.match(error.message, said);
      return true;
    });
    assert.equal((await count()) - before, requests);
  });
}
