// Eight streams at once, of which most have to wait: wait.mjs SDK URL MODEL. Each
// request is large enough to leave room for few others. Fails unless every answer
// has text.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [sdk, url, model] = process.argv.slice(2);
const padding = (n) => `${n} be terse and cite the file and the line. `.repeat(300);

const ask = {
  openai: async (messages) => {
    const client = new OpenAI({ baseURL: url + "/v1", apiKey: "dummy", maxRetries: 0 });
    let text = "";
    for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: 64, stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
    }
    return text;
  },
  anthropic: async (messages) => {
    const client = new Anthropic({ baseURL: url, apiKey: "dummy", maxRetries: 0 });
    const answer = await client.messages.stream({ model, messages, max_tokens: 64 }).finalMessage();
    return answer.content[0].text;
  },
}[sdk];

const answers = await Promise.all(
  Array.from({ length: 8 }, (_, i) => ask([{ role: "user", content: padding(i) }])),
);
for (const answer of answers) assert.ok(answer.length > 0);
