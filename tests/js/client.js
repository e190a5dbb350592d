// Asks a server by gRPC for Node.js, and prints what it was told as one line of JSON.
//
//   node client.js PROTO ADDRESS [AUTHORITY KEY]
//
// PROTO is the description of the protocol. With a file of an AUTHORITY the connection is TLS, and every call carries KEY.

"use strict";

const fs = require("fs");
const path = require("path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [proto, address, authority, key] = process.argv.slice(2);
const PATIENCE = 40_000; // milliseconds
const LARGE = 1_000_000; // bytes
const GZIP = 2;

function credentials() {
  if (!authority) {
    return grpc.credentials.createInsecure();
  }
  const bearer = grpc.credentials.createFromMetadataGenerator((_options, give) => {
    const metadata = new grpc.Metadata();
    metadata.set("authorization", `Bearer ${key}`);
    give(null, metadata);
  });
  const tls = grpc.credentials.createSsl(fs.readFileSync(authority));
  return grpc.credentials.combineChannelCredentials(tls, bearer);
}

function load(file) {
  return grpc.loadPackageDefinition(loader.loadSync(file, { keepCase: true, longs: Number, enums: String }));
}

function deadline(milliseconds = PATIENCE) {
  return { deadline: Date.now() + milliseconds };
}

// A call of one message: its answer, or the code and the text of its error.
function ask(client, method, message, options = deadline()) {
  return new Promise((resolve) => {
    client[method](message, new grpc.Metadata(), options, (error, answer) => {
      resolve(error ? { code: error.code, details: error.details } : answer);
    });
  });
}

// A call of several messages: all answers, and how it ended.
function converse(client, messages) {
  return new Promise((resolve) => {
    const answers = [];
    const call = client.ModelStreamInfer(new grpc.Metadata(), deadline());
    call.on("data", (answer) => answers.push(answer));
    call.on("error", () => {}); // its status says the same
    call.on("status", (status) => resolve({ code: status.code, answers }));
    messages.forEach((message) => call.write(message));
    call.end();
  });
}

// Leave a call as soon as its first answer is there.
function leave(client, message) {
  return new Promise((resolve) => {
    const call = client.ModelStreamInfer(new grpc.Metadata(), deadline());
    call.on("data", () => call.cancel());
    call.on("error", () => {});
    call.on("status", (status) => resolve(status.code));
    call.write(message);
  });
}

function text(value) {
  const data = Buffer.from(value);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(data.length);
  return Buffer.concat([length, data]);
}

function words(value, id = "", model = "words") {
  return {
    model_name: model,
    id,
    inputs: [{ name: "text", datatype: "BYTES", shape: [1] }],
    raw_input_contents: [text(value)],
  };
}

function tokens(count, id) {
  const number = Buffer.alloc(8);
  number.writeBigInt64LE(BigInt(count));
  return {
    model_name: "tokens",
    id,
    inputs: [{ name: "n", datatype: "INT64", shape: [1] }],
    raw_input_contents: [number],
  };
}

function textOf(answer) {
  return answer.raw_output_contents[0].subarray(4).toString();
}

async function main() {
  const inference = load(proto).inference.GRPCInferenceService;
  const health = load(path.join(path.dirname(proto), "health.proto")).grpc.health.v1.Health;
  const client = new inference(address, credentials());
  const compressed = new inference(address, credentials(), { "grpc.default_compression_algorithm": GZIP });
  const healthClient = new health(address, credentials());
  const unknown = grpc.makeGenericClientConstructor({
    Nonsense: {
      path: "/inference.GRPCInferenceService/Nonsense",
      requestStream: false,
      responseStream: false,
      requestSerialize: (value) => value,
      requestDeserialize: (value) => value,
      responseSerialize: (value) => value,
      responseDeserialize: (value) => value,
    },
  });

  const found = {};
  found.live = (await ask(client, "ServerLive", {})).live;
  const answer = await ask(client, "ModelInfer", words("from node", "7"));
  found.unary = { id: answer.id, text: textOf(answer) };
  const many = await Promise.all([...Array(50).keys()].map((n) => ask(client, "ModelInfer", words(`${n}`, `${n}`))));
  found.many = many.every((each, n) => each.id === `${n}` && textOf(each) === `${n}`);
  const large = "é".repeat(LARGE / 2);
  found.large = textOf(await ask(client, "ModelInfer", words(large))) === large;
  found.compressed = textOf(await ask(compressed, "ModelInfer", words("z".repeat(LARGE)))) === "z".repeat(LARGE);
  found.unknown_model = await ask(client, "ModelInfer", words("a", "", "nope"));
  found.unknown_method = (await ask(new unknown(address, credentials()), "Nonsense", Buffer.alloc(0))).code;
  found.late = (await ask(client, "ModelInfer", words("a", "", "waits"), deadline(300))).code;
  const stream = await converse(client, [words("a", "1"), tokens(3, "2"), words("b", "3", "nope"), words("c", "4")]);
  found.stream = { code: stream.code, errors: [], texts: {} };
  for (const each of stream.answers) {
    const id = each.infer_response.id;
    if (each.error_message) {
      found.stream.errors.push([id, each.error_message]);
    } else {
      (found.stream.texts[id] ||= []).push(textOf(each.infer_response));
    }
  }
  found.left = await leave(client, tokens(1_000_000, "5"));
  found.health = (await ask(healthClient, "Check", { service: "" })).status;
  found.health_of_model = (await ask(healthClient, "Check", { service: "words" })).status;
  found.health_of_another = (await ask(healthClient, "Check", { service: "nope" })).code;
  console.log(JSON.stringify(found));
  for (const each of [client, compressed, healthClient]) {
    each.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
