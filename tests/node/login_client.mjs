// An official TypeScript SDK logs in by its own OAuth helper, calls a tool, refreshes its token in the middle of the
// session, and asks for more scopes when a second tool needs them. `node login_client.mjs MAJOR REVISION URL TOOL GATED` prints
// what the tools answered, and how often the user was sent to the issuer.

const [major, revision, url, tool, gated] = process.argv.slice(2);
const sdk = major === '1'
  ? Object.assign({}, ...await Promise.all(['index', 'auth', 'streamableHttp'].map(
    (name) => import(`@modelcontextprotocol/sdk/client/${name}.js`))))
  : await import('@modelcontextprotocol/client');
const BACK = 'http://127.0.0.1:9/callback';
const kept = { asked: 0, refreshed: 0 };

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
  return new URL(place).searchParams;
}

const authProvider = {
  redirectUrl: BACK,
  clientMetadata: { redirect_uris: [BACK], client_name: 'test', token_endpoint_auth_method: 'none',
    grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'] },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => { kept.client = client; },
  tokens: () => kept.tokens,
  saveTokens: (tokens) => { kept.refreshed += kept.tokens ? 1 : 0; kept.tokens = tokens; },
  codeVerifier: () => kept.verifier,
  saveCodeVerifier: (verifier) => { kept.verifier = verifier; },
  async redirectToAuthorization(place) { kept.asked += 1; kept.back = await browse(place.href); },
};
const transport = () => new sdk.StreamableHTTPClientTransport(new URL(url), { authProvider });

// Does it, and once more after the user has been at the issuer if that is what it takes.
async function authorized(last, act) {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof sdk.UnauthorizedError)) throw error;
    await (major === '1' ? last().finishAuth(kept.back.get('code')) : last().finishAuth(kept.back));
    return act();
  }
}

let used;
const options = revision === '2026-07-28' ? { versionNegotiation: { mode: { pin: revision } } } : {};
const client = await authorized(() => used, async () => {
  const fresh = new sdk.Client({ name: 'test', version: '1' }, { capabilities: {}, ...options });
  used = transport();
  await fresh.connect(used);
  return fresh;
});
const call = (name) => authorized(() => used, () => client.callTool({ name, arguments: {} }));
const session = used.sessionId;
const first = await call(tool);
kept.tokens = { ...kept.tokens, access_token: `${kept.tokens.access_token}x` };
const again = await call(tool);
const refreshed = kept.refreshed;
delete kept.tokens.refresh_token; // with it the first SDK refreshes, and never asks for more
const more = await call(gated);
const texts = [first, again, more].map((result) => result.content[0].text);
console.log(JSON.stringify({ texts, asked: kept.asked, refreshed, same: used.sessionId === session }));
await client.close();
