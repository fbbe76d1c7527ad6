// Reads a JSON list of manifests; for each custom resource it knows it writes a line with its name, and what is wrong.
const packages = {
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
};

let text = "";
for await (const chunk of process.stdin) text += chunk;
for (const manifest of JSON.parse(text)) {
  const [group, version] = manifest.apiVersion.split("/");
  if (!(group in packages)) continue;
  let said = "ok";
  try {
    const models = await import(`${packages[group]}/${group}/${version}/${manifest.kind}`);
    new models[manifest.kind](manifest).validate();
  } catch (error) {
    said = error.message;
  }
  console.log(JSON.stringify({ kind: manifest.kind, name: manifest.metadata.name, said }));
}
