// From the OpenAPI document of a model to what its form needs to know.

import { label } from "../lib/format.js";

const WIDEST = 1_000_000; // numbers between the limits of a slider: beyond, it could not be moved to one of them

/** What can be asked of a model: predictions, or its training. */
export const JOBS = {
  predictions: { path: "/predictions", input: "Input", output: "Output" },
  trainings: { path: "/trainings", input: "TrainingInput", output: "TrainingOutput" },
};

/**
 * Read a document. Returns `{ description, fields, output, streams, isListed }`, or null if it has no such job.
 * `isListed`: whether the server keeps a list of what was asked for.
 *
 * A field: `name`, `label`, `kind`, `description`, `required`, `nullable`, `fallback` (the default; undefined for none),
 * `schema` with everything resolved, and of numbers `minimum`, `maximum`.
 */
export function readDocument(document, jobName) {
  const job = JOBS[jobName];
  const schemas = document.components?.schemas ?? {};
  const post = document.paths?.[job.path]?.post;
  if (!post || !schemas[job.input]) return null;
  const input = schemas[job.input];
  const required = new Set(input.required ?? []);
  const fields = Object.entries(input.properties ?? {})
    .map(([name, property]) => readField(name, resolve(property, schemas), required.has(name)))
    .sort((one, other) => (one.schema["x-order"] ?? 0) - (other.schema["x-order"] ?? 0));
  return {
    description: document.info?.description ?? "",
    fields,
    output: resolve(schemas[job.output] ?? {}, schemas),
    streams: Boolean(post["x-cog-streaming"]),
    isListed: Boolean(document.paths[job.path].get),
  };
}

// Put what a reference means in its place. Schemas of signatures are finite: none contains itself.
function resolve(schema, schemas) {
  if (Array.isArray(schema)) return schema.map((each) => resolve(each, schemas));
  if (schema === null || typeof schema !== "object") return schema;
  if (schema.$ref) return resolve(schemas[schema.$ref.split("/").at(-1)] ?? {}, schemas);
  const resolved = {};
  for (const [key, value] of Object.entries(schema)) {
    if (key === "allOf") Object.assign(resolved, ...value.map((each) => without(resolve(each, schemas), "title", "description")), resolved);
    else resolved[key] = key === "default" || key === "enum" ? value : resolve(value, schemas);
  }
  return resolved;
}

function without(schema, ...keys) {
  return Object.fromEntries(Object.entries(schema).filter(([key]) => !keys.includes(key)));
}

function readField(name, schema, required) {
  return {
    name,
    label: label(name),
    kind: kindOf(schema),
    description: schema.description ?? "",
    required,
    nullable: Boolean(schema.nullable),
    fallback: schema.default,
    deprecated: Boolean(schema.deprecated),
    minimum: schema.minimum,
    maximum: schema.maximum,
    schema,
  };
}

/** Return which control an input has. */
export function kindOf(schema) {
  if (schema["x-tensor"]) return "tensor";
  if (schema.enum) return "choice";
  if (schema["x-cog-secret"] || schema.format === "password") return "secret";
  if (schema.anyOf) return unionKind(schema.anyOf);
  switch (schema.type) {
    case "string":
      return schema.format === "uri" ? "file" : "text";
    case "integer":
    case "number":
      return schema.type;
    case "boolean":
      return "boolean";
    case "array":
      return arrayKind(schema.items ?? {});
    default:
      return "json";
  }
}

function unionKind(members) {
  const kinds = new Set(members.map(kindOf));
  if (kinds.size === 1) return [...kinds][0];
  return "json";
}

function arrayKind(items) {
  const kind = kindOf(items);
  if (kind === "file") return "files";
  if (kind === "choice") return "choices";
  return ["text", "integer", "number"].includes(kind) ? "list" : "json";
}

/** Whether a number has limits that a slider can stand between. */
export function hasSlider({ kind, minimum, maximum }) {
  const isNumber = kind === "integer" || kind === "number";
  return isNumber && minimum !== undefined && maximum !== undefined && maximum > minimum && maximum - minimum <= WIDEST;
}

/**
 * Return the beginning of a value, such as `{"left": 0}`, for a box of JSON that has no default. Lists have as few members
 * as they may have, and at least `fewest`: one in tensors, which are no arrays of their depth without it.
 */
export function skeleton(schema, fewest = 0) {
  if (schema["x-tensor"]) fewest = 1;
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return skeleton(schema.anyOf[0], fewest);
  switch (schema.type) {
    case "object":
      return Object.fromEntries(Object.entries(schema.properties ?? {}).map(([name, each]) => [name, skeleton(each)]));
    case "array":
      return Array.from({ length: Math.min(Math.max(schema.minItems ?? 0, fewest), 64) }, () => skeleton(schema.items ?? {}, fewest));
    case "integer":
    case "number":
      return 0;
    case "boolean":
      return false;
    default:
      return "";
  }
}

/** Return what an input takes, in a few words, such as `integer, 1 to 10`. */
export function typeText({ kind, schema, minimum, maximum }) {
  const parts = [KIND_TEXTS[kind] ?? kind];
  if (kind === "list") parts[0] = `list of ${KIND_TEXTS[kindOf(schema.items)]}s`;
  if (kind === "tensor") parts[0] = `tensor ${schema["x-tensor"].datatype} [${schema["x-tensor"].shape.join(", ")}]`;
  if (minimum !== undefined && maximum !== undefined) parts.push(`${minimum} to ${maximum}`);
  else if (minimum !== undefined) parts.push(`at least ${minimum}`);
  else if (maximum !== undefined) parts.push(`at most ${maximum}`);
  if (schema.maxLength !== undefined) parts.push(`at most ${schema.maxLength} characters`);
  if (schema["x-cog-accept"]) parts.push(schema["x-cog-accept"]);
  return parts.join(", ");
}

const KIND_TEXTS = { text: "text", integer: "integer", number: "number", boolean: "yes or no", choice: "choice", choices: "choices", secret: "secret", file: "file", files: "files", json: "JSON" };
