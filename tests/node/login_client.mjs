// The official TypeScript SDK logs in by its own OAuth helper and calls a tool. `node login_client.mjs URL TOOL` prints what
// the tool answered.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const [url, tool] = process.argv.slice(2);
const BACK = 'http://127.0.0.1:9/callback';
const kept = {};

// A browser: follows redirects, with cookies, until it is sent back to the client.
async function browse(place) {
  const cookies = new Map();
  while (!place.startsWith(BACK)) {
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const answer = await fetch(place, { redirect: 'manual', headers: { cookie } });
    for (const line of answer.headers.getSetCookie()) {
      const [name, value] = line.split(';')[0].split('=');
      cookies.set(name, value);
    }
    place = new URL(answer.headers.get('location'), place).href;
  }
  return new URL(place).searchParams.get('code');
}

const authProvider = {
  redirectUrl: BACK,
  clientMetadata: { redirect_uris: [BACK], client_name: 'test', token_endpoint_auth_method: 'none',
    grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'] },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => { kept.client = client; },
  tokens: () => kept.tokens,
  saveTokens: (tokens) => { kept.tokens = tokens; },
  codeVerifier: () => kept.verifier,
  saveCodeVerifier: (verifier) => { kept.verifier = verifier; },
  async redirectToAuthorization(place) { kept.code = await browse(place.href); },
};

async function connect() {
  const client = new Client({ name: 'test', version: '1' });
  const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider });
  try {
    await client.connect(transport);
    return client;
  } catch (error) {
    if (!(error instanceof UnauthorizedError) || kept.tokens) throw error;
    await transport.finishAuth(kept.code);
    return connect();
  }
}

const client = await connect();
const result = await client.callTool({ name: tool, arguments: {} });
console.log(result.content[0].text);
await client.close();
