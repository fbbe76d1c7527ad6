// node hosting.mjs SOCKET PROGRAM ARGUMENT…: a server of the matrix on stdio that starts at once. Each connection to the
// socket is the stdin and stdout of one server, as a process of its own would be: PROGRAM is evaluated anew for it, with
// these arguments, and its `serve(input, output)` is called. What the program requires is loaded once, which takes
// longer than a client's whole visit.
import { renameSync } from "node:fs";
import { createServer } from "node:net";
import { pathToFileURL } from "node:url";

const [path, program] = process.argv.splice(2, 2);
let connections = 0;

async function serve(socket) {
  connections += 1;
  const server = await import(`${pathToFileURL(program)}?${connections}`); // a URL of its own: a module of its own
  await server.serve(socket, socket);
}

// Who finds it there can connect.
createServer(serve).listen(`${path}.new`, () => renameSync(`${path}.new`, path));
