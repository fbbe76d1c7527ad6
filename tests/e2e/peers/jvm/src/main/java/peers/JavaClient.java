package peers;

import io.modelcontextprotocol.client.McpClient;
import io.modelcontextprotocol.client.McpSyncClient;
import io.modelcontextprotocol.client.transport.HttpClientStreamableHttpTransport;
import io.modelcontextprotocol.json.McpJsonDefaults;
import io.modelcontextprotocol.json.McpJsonMapper;
import io.modelcontextprotocol.json.TypeRef;
import io.modelcontextprotocol.spec.McpError;
import io.modelcontextprotocol.spec.McpSchema.*;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/** A client on the official Java SDK: uses every feature of the servers it visits. It speaks the handshake era alone. */
public final class JavaClient {

    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final McpJsonMapper JSON = McpJsonDefaults.getMapper();

    private final String names;
    private final String uris;
    private final List<?> tells;
    private final Map<String, Object> seen;
    private final BlockingQueue<Double> progress = new LinkedBlockingQueue<>();
    private final BlockingQueue<String> updated = new LinkedBlockingQueue<>();
    private final BlockingQueue<String> changed = new LinkedBlockingQueue<>();
    private McpSyncClient client;

    private JavaClient(Map<String, Object> visit, Map<String, Object> seen) {
        this.names = (String) visit.get("names");
        this.uris = (String) visit.get("uris");
        this.tells = (List<?>) visit.get("told");
        this.seen = seen;
    }

    public static void main(String[] arguments) throws Exception {
        List<Map<String, Object>> visits = JSON.readValue(arguments[0], new TypeRef<>() {});
        List<Map<String, Object>> all = new ArrayList<>();
        for (Map<String, Object> visit : visits) {
            Map<String, Object> seen = new TreeMap<>();
            all.add(seen);
            try {
                new JavaClient(visit, seen).make((String) visit.get("url"));
            } catch (Exception error) {
                seen.put("broken", error.toString());
            }
        }
        System.out.println(JSON.writeValueAsString(all));
        System.exit(0); // its threads would live on
    }

    private void make(String url) throws Exception {
        URI where = URI.create(url);
        var transport = HttpClientStreamableHttpTransport.builder(where.resolve("/").toString())
                .endpoint(where.getPath())
                .openConnectionOnStartup(true)
                .build();
        client = McpClient.sync(transport)
                .requestTimeout(PATIENCE)
                .initializationTimeout(PATIENCE)
                .clientInfo(new Implementation("java", "1.0.0"))
                .capabilities(ClientCapabilities.builder().roots(true).sampling().elicitation().build())
                .roots(new Root("file:///home", "home"))
                .sampling(request -> CreateMessageResult.builder(Role.ASSISTANT, "words", "m").build())
                .elicitation(request -> new ElicitResult(ElicitResult.Action.ACCEPT, Map.of("color", "red")))
                .progressConsumer(said -> progress.add(said.progress()))
                .resourcesUpdateConsumer(contents -> updated.add("updated"))
                .toolsChangeConsumer(tools -> changed.add("changed"))
                .build();
        try {
            seen.put("revision", client.initialize().protocolVersion());
            useTools();
            useResources();
            usePrompts();
            beTold();
        } finally {
            client.closeGracefully();
        }
    }

    private String call(String name, Map<String, Object> arguments) {
        var result = client.callTool(CallToolRequest.builder(names + name)
                .arguments(arguments)
                .progressToken("steps of " + name)
                .build());
        List<String> words = new ArrayList<>();
        if (Boolean.TRUE.equals(result.isError())) {
            words.add("isError");
        }
        for (Content part : result.content()) {
            if (part instanceof TextContent text) {
                words.add(text.text());
            }
        }
        return String.join(" ", words);
    }

    private <T> List<String> ours(List<T> listed, Function<T, String> name, String prefix) {
        return listed.stream()
                .map(name)
                .filter(each -> each.startsWith(prefix))
                .map(each -> each.substring(prefix.length()))
                .sorted()
                .toList();
    }

    private List<String> toolNames() {
        return ours(client.listTools().tools(), Tool::name, names);
    }

    private void useTools() throws InterruptedException {
        seen.put("tools", toolNames());
        seen.put("echo", call("echo", Map.of("value", "grüße")));
        try {
            seen.put("unknown tool", call("no-such-tool", Map.of()));
        } catch (McpError error) {
            seen.put("unknown tool", error.getJsonRpcError().code());
        }
        for (String name : List.of("fail", "steps", "elicit", "sample", "roots")) {
            seen.put(name, call(name, Map.of()));
        }
        List<Double> steps = new ArrayList<>();
        for (int step = 0; step < 3; step++) {
            steps.add(heard(progress));
        }
        steps.addAll(progress);
        steps.sort(null); // the SDK hands what it is told to several threads
        seen.put("progress", steps);
    }

    private static <T> T heard(BlockingQueue<T> queue) throws InterruptedException {
        T said = queue.poll(PATIENCE.toSeconds(), TimeUnit.SECONDS);
        if (said == null) {
            throw new IllegalStateException("nothing was told");
        }
        return said;
    }

    private void useResources() {
        seen.put("resources", ours(client.listResources().resources(), Resource::uri, uris));
        seen.put("templates", ours(client.listResourceTemplates().resourceTemplates(), ResourceTemplate::uriTemplate, uris));
        for (var each : Map.of("read", "memo:///one", "read by template", "memo:///by-id/7").entrySet()) {
            var read = client.readResource(new ReadResourceRequest(uris + each.getValue()));
            seen.put(each.getKey(), ((TextResourceContents) read.contents().get(0)).text());
        }
    }

    private void usePrompts() {
        seen.put("prompts", ours(client.listPrompts().prompts(), Prompt::name, names));
        var prompt = client.getPrompt(new GetPromptRequest(names + "greeting", Map.of("topic", "tea")));
        seen.put("prompt", ((TextContent) prompt.messages().get(0).content()).text());
        var completed = client.completeCompletion(new CompleteRequest(
                new PromptReference(names + "greeting"), new CompleteRequest.CompleteArgument("topic", "mu")));
        seen.put("completion", completed.completion().values());
    }

    private void beTold() throws InterruptedException {
        if (tells.contains("updated")) {
            client.subscribeResource(new SubscribeRequest(uris + "memo:///one"));
            call("touch", Map.of());
            heard(updated);
            seen.put("updated", true);
        }
        if (tells.contains("changes")) {
            for (String feature : List.of("tools after one came", "tools after it left")) {
                var before = toolNames();
                call("change", Map.of());
                var now = before;
                while (now.equals(before)) { // behind an aggregate, what is told may be a change of another server
                    heard(changed);
                    now = toolNames();
                }
                seen.put(feature, now);
            }
        }
    }
}
