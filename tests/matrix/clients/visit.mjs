// What every TypeScript client of the matrix tries on an endpoint, and what it saw: feature → outcome, in the words of
// visit.py. A client on some SDK gives a peer, as visit.py has it:
//   revision, told: [[method, params]], decline: whether forms are refused,
//   request(method, params, progress?): the result, or an error with the integer `code` of the server's,
//   logAt(level?), watch(uri?): gives what ends it, abandon(method, params, after), close().
// This file knows no SDK.
import { setTimeout as sleep } from "node:timers/promises";

const PATIENCE = 90_000; // milliseconds for one feature: nothing waits for so long where all is well
const PAGE = "https://example.com/open";
const MEMO = "memo:///one";

class Late extends Error {}

function within(milliseconds, work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Late("too late")), milliseconds);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

// --- pieces

const call = (peer, name, args = {}) => peer.request("tools/call", { name, arguments: args });

function texts(result) {
  const said = result.content.flatMap((block) => (block.type === "text" ? [block.text] : [])).join(" ");
  return result.isError ? `isError ${said}` : said;
}

export async function until(condition) {
  const end = Date.now() + PATIENCE / 3;
  while (!(await condition())) {
    if (Date.now() > end) return false;
    await sleep(20);
  }
  return true;
}

async function everything(peer, method, items) {
  const found = [];
  let cursor;
  do {
    const page = await peer.request(method, cursor === undefined ? {} : { cursor });
    found.push(...page[items]);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return found;
}

const toolNames = async (peer) => (await everything(peer, "tools/list", "tools")).map((tool) => tool.name);
const counted = async (peer) => JSON.parse(texts(await call(peer, "counted")));
const kinds = (name) => async (peer) => (await call(peer, name)).content.map((block) => block.type).join(" ");

// What the tool says, and that it ran once however often the client was asked.
async function once(peer, name, args) {
  const before = (await counted(peer)).executed;
  const said = texts(await call(peer, name, args));
  const ran = (await counted(peer)).executed - before;
  return ran === 1 ? said : `${said}, ran ${ran} times`;
}

// --- features

async function tools(peer) {
  const names = await toolNames(peer);
  const whole = names.includes("echo") && names.includes("counted") && names.length > 5;
  return whole && new Set(names).size === names.length ? "ok" : `saw ${names}`;
}

async function structured(peer) {
  const result = await call(peer, "structured");
  return result.structuredContent?.value === 1 ? "structured" : `text ${texts(result)}`;
}

async function progress(peer) {
  const steps = [];
  await peer.request("tools/call", { name: "progress", arguments: {} }, steps);
  return String(steps) === "1,2,3" ? "ok" : `saw ${steps}`;
}

async function logging(peer) {
  await peer.logAt("warning");
  peer.told.length = 0;
  await call(peer, "logs");
  const said = peer.told.flatMap(([method, params]) => (method === "notifications/message" ? [params.data] : []));
  await peer.logAt();
  return String(said) === "a warning" ? "ok" : `saw ${said}`;
}

async function cancel(peer) {
  if (!(await toolNames(peer)).includes("slow")) throw Object.assign(new Error("there is no slow"), { code: -32602 });
  const before = (await counted(peer)).cancelled;
  await peer.abandon("tools/call", { name: "slow", arguments: {} });
  return (await until(async () => (await counted(peer)).cancelled > before)) ? "ok" : "not cancelled";
}

async function decline(peer) {
  peer.decline = true;
  return once(peer, "elicit");
}

// -32042: the page is opened, and the call made again.
async function urlRequired(peer) {
  try {
    const said = texts(await call(peer, "needs_url"));
    return said.startsWith("isError") && said.includes(PAGE) ? "isError, with the page" : said;
  } catch (error) {
    if (error.code !== -32042) throw error;
  }
  return `-32042, then ${texts(await call(peer, "needs_url"))}`;
}

const read = async (peer, uri) => (await peer.request("resources/read", { uri })).contents[0].text;

async function resources(peer) {
  const listed = (await everything(peer, "resources/list", "resources")).map((resource) => resource.uri);
  const said = await read(peer, MEMO);
  return String(listed) === MEMO && said === "one" ? "ok" : `saw ${listed} ${said}`;
}

async function templates(peer) {
  const listed = await everything(peer, "resources/templates/list", "resourceTemplates");
  const said = await read(peer, "memo:///by-id/7");
  return listed.length === 1 && said === "id 7" ? "ok" : `saw ${JSON.stringify(listed)} ${said}`;
}

async function subscription(peer) {
  const end = await peer.watch(MEMO);
  peer.told.length = 0;
  await call(peer, "touch");
  const updated = ([method, params]) => method === "notifications/resources/updated" && params.uri === MEMO;
  const came = await until(() => peer.told.some(updated));
  await end();
  return came ? "ok" : "not told";
}

async function toolsChanged(peer) {
  const end = await peer.watch();
  peer.told.length = 0;
  await call(peer, "change");
  const came = await until(() => peer.told.some(([method]) => method === "notifications/tools/list_changed"));
  const names = await toolNames(peer);
  await call(peer, "change");
  await end();
  return came && names.includes("extra") ? "ok" : `told ${came}, saw ${names}`;
}

const prompt = async (peer, params) => (await peer.request("prompts/get", params)).messages[0].content.text;

async function prompts(peer) {
  const names = (await everything(peer, "prompts/list", "prompts")).map((listed) => listed.name);
  const said = await prompt(peer, { name: "greeting", arguments: { topic: "x" } });
  return names.includes("greeting") && said === "About x" ? "ok" : `saw ${names} ${said}`;
}

async function completion(peer) {
  const params = { ref: { type: "ref/prompt", name: "greeting" }, argument: { name: "topic", value: "mu" } };
  const { values } = (await peer.request("completion/complete", params)).completion;
  return String(values) === "music,museum" ? "ok" : `saw ${values}`;
}

async function trace(peer) {
  const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const params = { name: "metadata", arguments: {}, _meta: { traceparent, tracestate: "a=b" } };
  const said = texts(await peer.request("tools/call", params));
  return String(JSON.parse(said)) === "traceparent,tracestate" ? "ok" : said;
}

const FEATURES = {
  "tools, in pages": tools,
  "tools/call": async (peer) => (texts(await call(peer, "echo", { value: "x" })) === "you said x" ? "ok" : "wrong"),
  isError: async (peer) => texts(await call(peer, "fail")),
  "unknown tool": async (peer) => texts(await call(peer, "no-such-tool")),
  image: kinds("image"),
  audio: kinds("audio"),
  "embedded resource": kinds("embedded"),
  "resource link": kinds("link"),
  "structured content": structured,
  progress,
  "log messages": logging,
  cancellation: cancel,
  sampling: (peer) => once(peer, "sample"),
  "sampling with tools": (peer) => once(peer, "sample", { tools: true }),
  "elicitation, form": (peer) => once(peer, "elicit"),
  "elicitation, declined": decline,
  "elicitation, url": (peer) => once(peer, "elicit", { url: true }),
  "url required (-32042)": urlRequired,
  roots: async (peer) => texts(await call(peer, "roots")),
  resources,
  "missing resource": (peer) => read(peer, "memo:///none"),
  "resource templates": templates,
  subscription,
  "tools/list_changed": toolsChanged,
  prompts,
  "prompt that elicits": (peer) => prompt(peer, { name: "asking" }),
  completion,
  "trace context": trace,
};

// Every feature in turn; one that hangs or breaks says so, and the others go on.
async function visit(peer) {
  const seen = { revision: peer.revision };
  for (const [name, feature] of Object.entries(FEATURES)) {
    peer.decline = false;
    try {
      seen[name] = await within(PATIENCE, feature(peer));
    } catch (error) {
      if (error instanceof Late) seen[name] = "hangs";
      else if (Number.isInteger(error.code)) seen[name] = `error ${error.code}`;
      else seen[name] = String(error).slice(0, 200);
    }
  }
  return seen;
}

async function visitAt(connect, url) {
  const peer = await connect(url);
  const seen = await visit(peer);
  await peer.close();
  return seen;
}

// Visits each endpoint of '{"name": "url", …}', all at once, and prints what was seen, as JSON.
export async function main(connect, endpoints) {
  const seen = {};
  const visits = Object.entries(JSON.parse(endpoints)).map(async ([name, url]) => {
    const broken = (error) => ({ broken: String(error.stack).slice(0, 2000) });
    seen[name] = await within(PATIENCE * 6, visitAt(connect, url)).catch(broken);
  });
  await Promise.all(visits);
  process.stdout.write(JSON.stringify(seen), () => process.exit()); // what hangs does not hold it
}
