// Two conversations of three turns through an SDK: converse.mjs SDK URL MODEL.
// The second conversation streams. Fails unless every answer has text and usage.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [sdk, url, model] = process.argv.slice(2);
const padding = "Be terse and cite the file and the line. ".repeat(200);

const ask = {
  openai: async (messages, stream) => {
    const client = new OpenAI({ baseURL: url + "/v1", apiKey: "dummy", maxRetries: 0 });
    const body = { model, messages: [{ role: "system", content: padding }, ...messages], max_tokens: 32 };
    if (!stream) {
      const answer = await client.chat.completions.create(body);
      assert.ok(answer.usage.prompt_tokens > 0);
      return answer.choices[0].message.content;
    }
    let text = "";
    for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
      // The gateway asks the engine for usage; the client did not and must not see it.
      assert.ok(chunk.usage == null, "a usage chunk that nobody asked for");
      assert.equal(chunk.choices.length, 1);
      text += chunk.choices[0].delta.content ?? "";
    }
    return text;
  },
  anthropic: async (messages, stream) => {
    const client = new Anthropic({ baseURL: url, apiKey: "dummy", maxRetries: 0 });
    const body = { model: "claude-sonnet-4-5", system: padding, messages, max_tokens: 32 };
    const answer = stream ? await client.messages.stream(body).finalMessage() : await client.messages.create(body);
    assert.ok(answer.usage.output_tokens > 0);
    return answer.content[0].text;
  },
}[sdk];

for (const [i, stream] of [false, true].entries()) {
  const messages = [{ role: "user", content: `opening ${i} of ${sdk}` }];
  for (let turn = 1; turn <= 3; turn++) {
    const answer = await ask(messages, stream);
    assert.ok(answer.length > 0);
    messages.push({ role: "assistant", content: answer }, { role: "user", content: `question ${turn + 1}` });
  }
}
