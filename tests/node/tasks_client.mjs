// Runs a tool of server-everything as a task with the official TypeScript SDK, and lets server-everything run questions
// as tasks of this client. Prints what it saw as one JSON object.
// Usage: node tasks_client.mjs URL PREFIX, where PREFIX stands before the names of server-everything's tools.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { InMemoryTaskStore } from "@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js";
import { CallToolResultSchema, CreateMessageRequestSchema, ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [url, prefix] = process.argv.slice(2);
const seen = { asked: [], statuses: [] };
const ran = { cancel: {}, requests: { sampling: { createMessage: {} }, elicitation: { create: {} } } };
const taskStore = new InMemoryTaskStore();
const client = new Client(
  { name: "typescript-sdk-client", version: "1.0.0" },
  { capabilities: { sampling: {}, elicitation: { form: {} }, tasks: ran }, taskStore },
);

// What the server wants as a task is answered as one: the answer is there at once, and fetched by the server.
async function answered(kind, request, extra, result) {
  seen.asked.push({ kind, task: request.params.task !== undefined, related: extra.taskId !== undefined });
  if (request.params.task === undefined) return result;
  const task = await extra.taskStore.createTask({ ttl: 60000, pollInterval: 100 });
  await extra.taskStore.storeTaskResult(task.taskId, "completed", result);
  return { task };
}
client.setRequestHandler(CreateMessageRequestSchema, (request, extra) =>
  answered("sampling", request, extra, { role: "assistant", model: "m", content: { type: "text", text: "sampled" } }),
);
client.setRequestHandler(ElicitRequestSchema, (request, extra) => {
  const topic = request.params.requestedSchema?.properties?.interpretation;
  const content = topic === undefined ? { name: "Ada" } : { interpretation: topic.oneOf[0].const };
  return answered("elicitation", request, extra, { action: "accept", content });
});

const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
seen.offered = client.getServerCapabilities().tasks;
seen.tools = (await client.listTools()).tools.map((tool) => tool.name);

const research = { name: `${prefix}simulate-research-query`, arguments: { topic: "python", ambiguous: true } };
for await (const message of client.experimental.tasks.callToolStream(research, CallToolResultSchema, { task: {} })) {
  if (message.type === "taskCreated") seen.id = message.task.taskId;
  if (message.type === "taskStatus") seen.statuses.push(message.task.status);
  if (message.type === "result") seen.result = message.result.content[0].text;
  if (message.type === "error") seen.error = String(message.error);
}
seen.found = (await client.experimental.tasks.getTask(seen.id)).status;
seen.unknown = await client.experimental.tasks.getTask("none").catch((error) => error.code);

for await (const message of client.experimental.tasks.callToolStream(
  { name: `${prefix}simulate-research-query`, arguments: { topic: "rust" } }, CallToolResultSchema, { task: {} })) {
  if (message.type === "taskCreated") {
    seen.cancelled = (await client.experimental.tasks.cancelTask(message.task.taskId)).status;
    break;
  }
}

seen.ran = {};
for (const name of ["trigger-sampling-request-async", "trigger-elicitation-request-async"]) {
  if (!seen.tools.includes(prefix + name)) continue;
  const args = name.includes("sampling") ? { prompt: "question", maxTokens: 10 } : {};
  const result = await client.callTool({ name: prefix + name, arguments: args });
  seen.ran[name] = result.content.map((part) => part.text).join("\n");
}
await transport.terminateSession();
await client.close();
taskStore.cleanup();
console.log(JSON.stringify(seen));
