// A real authorization server: oidc-provider on a free port of this machine. Whoever comes is logged in as the user that
// stands in `/login?user=` before, else as ann. It registers clients, wants PKCE, and gives JWTs for the resource that
// is asked for, or with `opaque` tokens that only introspection can read. `node issuer.mjs PORT SECONDS [opaque]`: how
// long an access token is good for.

import { createServer } from 'node:http';
import { generateKeyPairSync } from 'node:crypto';
import Provider from 'oidc-provider';

const port = Number(process.argv[2]);
const seconds = Number(process.argv[3] ?? 600);
const accessTokenFormat = process.argv[4] ?? 'jwt';
const issuer = `http://127.0.0.1:${port}`;
const GROUPS = { ann: ['dev'], bob: ['ops'] };
const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
let user = 'ann';

const provider = new Provider(issuer, {
  jwks: { keys: [{ ...privateKey.export({ format: 'jwk' }), kid: 'one', alg: 'RS256', use: 'sig' }] },
  scopes: ['openid', 'offline_access', 'mcp', 'write'],
  clients: [
    { client_id: 'gateway', client_secret: 'gateway-secret-of-the-tests', redirect_uris: [], response_types: [],
      grant_types: ['client_credentials'] },
  ],
  features: {
    devInteractions: { enabled: false },
    registration: { enabled: true },
    introspection: { enabled: true, allowedPolicy: () => true },
    revocation: { enabled: true },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => ({
        scope: 'mcp write', audience: resource, accessTokenTTL: seconds, accessTokenFormat,
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  extraTokenClaims: (_, token) => ({ groups: GROUPS[token.accountId] ?? [] }),
  issueRefreshToken: async () => true,
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  async loadExistingGrant(ctx) {
    const { client, session, params, provider: { Grant } } = ctx.oidc;
    const grant = new Grant({ clientId: client.clientId, accountId: session.accountId });
    grant.addOIDCScope('openid offline_access mcp write');
    if (params.resource) grant.addResourceScope(params.resource, params.scope ?? 'mcp');
    await grant.save();
    return grant;
  },
  cookies: { keys: ['of-the-tests'] },
  ttl: { AccessToken: seconds, Grant: 86400, Interaction: 600, Session: 86400, RefreshToken: 86400 },
});

const serve = provider.callback();
createServer(async (request, response) => {
  const url = new URL(request.url, issuer);
  if (url.pathname === '/login') {
    user = url.searchParams.get('user');
    response.end(user);
  } else if (url.pathname.startsWith('/interaction/')) {
    await provider.interactionFinished(request, response, { login: { accountId: user }, consent: {} });
  } else if (request.method === 'POST' && url.pathname === '/reg') {
    // What a client may ask for is not what it names when it registers (RFC 7591, section 2): else none could step up.
    const chunks = await Array.fromAsync(request);
    const { scope, ...client } = JSON.parse(Buffer.concat(chunks));
    request.body = client;
    serve(request, response);
  } else {
    serve(request, response);
  }
}).listen(port, '127.0.0.1', () => console.log(`listening on ${issuer}`));
