// A server on the official Go SDK: over stdio, or over HTTP on the port given. With --legacy it speaks no revision
// after 2025-11-25, and keeps events for clients that lose a stream.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type nothing struct{}

type spoken struct {
	Value string `json:"value"`
}

func main() {
	port := flag.Int("http", 0, "the port to listen on; without it, stdio")
	legacy := flag.Bool("legacy", false, "the handshake era alone")
	flag.Parse()
	server := build(*legacy)
	if *port == 0 {
		if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return
	}
	options := &mcp.StreamableHTTPOptions{}
	if *legacy {
		options.EventStore = mcp.NewMemoryEventStore(nil)
	}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options)
	log.Fatal(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", *port), handler))
}

func build(legacy bool) *mcp.Server {
	options := &mcp.ServerOptions{
		Instructions:       "say what you want",
		CompletionHandler:  complete,
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	}
	if legacy {
		options.SupportedProtocolVersions = []string{"2025-11-25", "2025-06-18"}
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "go-server", Version: "1.0.0"}, options)
	addTools(server)
	addResources(server)
	server.AddPrompt(&mcp.Prompt{
		Name:      "greeting",
		Arguments: []*mcp.PromptArgument{{Name: "topic", Required: true}},
	}, func(_ context.Context, request *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		about := &mcp.TextContent{Text: "About " + request.Params.Arguments["topic"]}
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: about}}}, nil
	})
	return server
}

func text(said string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: said}}}
}

func addTools(server *mcp.Server) {
	tool := func(name string, body func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error)) {
		mcp.AddTool(server, &mcp.Tool{Name: name}, func(ctx context.Context, request *mcp.CallToolRequest, _ nothing) (*mcp.CallToolResult, any, error) {
			result, err := body(ctx, request)
			return result, nil, err
		})
	}
	mcp.AddTool(server, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, in spoken) (*mcp.CallToolResult, any, error) {
		return text("you said " + in.Value), nil, nil
	})
	tool("fail", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, fmt.Errorf("it failed")
	})
	tool("steps", steps)
	tool("elicit", asking(
		&mcp.ElicitParams{Message: "Which color?", RequestedSchema: map[string]any{
			"type": "object", "properties": map[string]any{"color": map[string]any{"type": "string"}},
		}},
		func(answer mcp.InputResponse) string {
			said := answer.(*mcp.ElicitResult)
			return strings.TrimSpace(fmt.Sprintf("%s %v", said.Action, said.Content["color"]))
		},
	))
	tool("sample", asking(
		&mcp.CreateMessageParams{MaxTokens: 50, Messages: []*mcp.SamplingMessage{
			{Role: "user", Content: &mcp.TextContent{Text: "Say something"}},
		}},
		sampled,
	))
	tool("roots", asking(&mcp.ListRootsParams{}, func(answer mcp.InputResponse) string {
		uris := []string{}
		for _, root := range answer.(*mcp.ListRootsResult).Roots {
			uris = append(uris, root.URI)
		}
		return strings.Join(uris, " ")
	}))
	tool("touch", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text("touched"), server.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: "memo:///one"})
	})
	extra := false
	tool("change", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if extra = !extra; extra {
			tool("extra", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return text("extra"), nil
			})
		} else {
			server.RemoveTools("extra")
		}
		return text("changed"), nil
	})
}

func sampled(answer mcp.InputResponse) string {
	said := []string{"sampled"}
	parts := []mcp.Content{}
	switch answer := answer.(type) {
	case *mcp.CreateMessageResult:
		parts = append(parts, answer.Content)
	case *mcp.CreateMessageWithToolsResult:
		parts = append(parts, answer.Content...)
	}
	for _, part := range parts {
		said = append(said, part.(*mcp.TextContent).Text)
	}
	return strings.Join(said, " ")
}

// asking is a tool that needs one answer of its client. The SDK asks a client of the handshake era by itself.
func asking(
	question mcp.InputRequest, said func(mcp.InputResponse) string,
) func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return func(_ context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if answer, there := request.Params.InputResponses["it"]; there {
			return text(said(answer)), nil
		}
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"it": question}}, nil
	}
}

func steps(ctx context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if token := request.Params.GetProgressToken(); token != nil {
		for step := 1; step <= 3; step++ {
			progress := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(step), Total: 3}
			if err := request.Session.NotifyProgress(ctx, progress); err != nil {
				return nil, err
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return text("done"), nil
}

func addResources(server *mcp.Server) {
	read := func(_ context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		uri := request.Params.URI
		said := "one"
		if id, found := strings.CutPrefix(uri, "memo:///by-id/"); found {
			said = "id " + id
		}
		contents := &mcp.ResourceContents{URI: uri, MIMEType: "text/plain", Text: said}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
	}
	server.AddResource(&mcp.Resource{URI: "memo:///one", Name: "one", MIMEType: "text/plain"}, read)
	server.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "memo:///by-id/{id}", Name: "by id"}, read)
}

func complete(_ context.Context, request *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	values := []string{}
	for _, word := range []string{"music", "museum", "moon"} {
		if strings.HasPrefix(word, request.Params.Argument.Value) {
			values = append(values, word)
		}
	}
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: values, Total: len(values)}}, nil
}
