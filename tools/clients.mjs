/* The clients in JavaScript, for clients.py: node clients.mjs CLIENT CASE URL MODEL */
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool as define } from "ai";
import { z } from "zod";

const [client, name, url, model] = process.argv.slice(2);
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"],
  additionalProperties: false };
const tool = { type: "function", function: { name: "weather", parameters: schema } };

async function joined(texts) {
  let whole = "";
  for await (const text of texts) whole += text;
  return whole;
}

async function* texts(chunks) {
  for await (const chunk of chunks) yield chunk.choices[0]?.delta?.content ?? "";
}

function openai() {
  const create = (more) => new OpenAI({ baseURL: url, apiKey: "unused" }).chat.completions.create(
    { model, messages, ...more });
  const message = async (more) => (await create(more)).choices[0].message;
  const json_schema = { name: "city", schema, strict: true };
  return {
    chat: async () => (await message()).content,
    stream: async () => joined(texts(await create({ stream: true }))),
    structured: async () => JSON.parse(
      (await message({ response_format: { type: "json_schema", json_schema } })).content).city,
    tools: async () => JSON.parse(
      (await message({ tools: [tool], tool_choice: "required" })).tool_calls[0].function.arguments).city,
  };
}

function vercel() {
  const inputSchema = z.object({ city: z.string() });
  const provider = { name: "here", baseURL: url, apiKey: "unused", supportsStructuredOutputs: true };
  const asked = { model: createOpenAICompatible(provider)(model), messages };
  const tools = { weather: define({ description: "The weather", inputSchema }) };
  return {
    chat: async () => (await generateText(asked)).text,
    stream: async () => joined(streamText(asked).textStream),
    structured: async () => (await generateObject({ ...asked, schema: inputSchema })).object.city,
    tools: async () =>
      (await generateText({ ...asked, tools, toolChoice: "required" })).toolCalls[0].input.city,
  };
}

if (typeof (await { openai, vercel }[client]()[name]()) !== "string") throw Error("no text");
