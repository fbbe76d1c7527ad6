// A client on the official Go SDK: uses every feature of the servers it visits.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"stagedoor.test/peers/visit"
)

func main() { visit.Main(converse) }

// heard is what the server said while it was visited.
type heard struct {
	sync.Mutex
	progress []float64
	changed  chan struct{}
	updated  chan struct{}
}

func (h *heard) steps() []float64 {
	h.Lock()
	defer h.Unlock()
	return slices.Clone(h.progress)
}

func connect(ctx context.Context, to visit.Visit, said *heard) (*mcp.ClientSession, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "go-client", Version: "1.0.0"}, &mcp.ClientOptions{
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "words"}}, nil
		},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"color": "red"}}, nil
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { visit.Tell(said.changed) },
		ResourceUpdatedHandler: func(context.Context, *mcp.ResourceUpdatedNotificationRequest) { visit.Tell(said.updated) },
		ProgressNotificationHandler: func(_ context.Context, request *mcp.ProgressNotificationClientRequest) {
			said.Lock()
			defer said.Unlock()
			said.progress = append(said.progress, request.Params.Progress)
		},
	})
	client.AddRoots(&mcp.Root{URI: "file:///home", Name: "home"})
	transport := &mcp.StreamableClientTransport{Endpoint: to.URL}
	return client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: to.Revision})
}

func converse(ctx context.Context, to visit.Visit, seen visit.Seen) error {
	said := &heard{changed: make(chan struct{}, 1), updated: make(chan struct{}, 1)}
	session, err := connect(ctx, to, said)
	if err != nil {
		return err
	}
	defer session.Close()
	seen["revision"] = session.InitializeResult().ProtocolVersion
	for _, part := range []func(context.Context, *mcp.ClientSession, visit.Visit, *heard, visit.Seen) error{
		tools, questions, resources, prompts, changes,
	} {
		if err := part(ctx, session, to, said, seen); err != nil {
			return err
		}
	}
	return nil
}

func call(ctx context.Context, session *mcp.ClientSession, to visit.Visit, name string, arguments any) (string, error) {
	params := &mcp.CallToolParams{Name: to.Names + name, Arguments: arguments}
	params.SetProgressToken("steps of " + name)
	result, err := session.CallTool(ctx, params)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	said := []string{}
	if result.IsError {
		said = append(said, "isError")
	}
	for _, part := range result.Content {
		if text, ok := part.(*mcp.TextContent); ok {
			said = append(said, text.Text)
		}
	}
	return strings.Join(said, " "), nil
}

func names(ctx context.Context, session *mcp.ClientSession, to visit.Visit) ([]string, error) {
	found := []string{}
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		if name, ours := strings.CutPrefix(tool.Name, to.Names); ours {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found, nil
}

func tools(ctx context.Context, session *mcp.ClientSession, to visit.Visit, said *heard, seen visit.Seen) (err error) {
	if seen["tools"], err = names(ctx, session, to); err != nil {
		return err
	}
	if seen["echo"], err = call(ctx, session, to, "echo", map[string]any{"value": "grüße"}); err != nil {
		return err
	}
	if seen["fail"], err = call(ctx, session, to, "fail", map[string]any{}); err != nil {
		return err
	}
	answered, unknown := call(ctx, session, to, "no-such-tool", map[string]any{})
	seen["unknown tool"] = answered
	var refused *jsonrpc.Error
	if errors.As(unknown, &refused) {
		seen["unknown tool"] = refused.Code
	}
	if seen["steps"], err = call(ctx, session, to, "steps", map[string]any{}); err != nil {
		return err
	}
	visit.Until(ctx, func() bool { return len(said.steps()) >= 3 })
	seen["progress"] = said.steps()
	return nil
}

func questions(ctx context.Context, session *mcp.ClientSession, to visit.Visit, _ *heard, seen visit.Seen) (err error) {
	for _, question := range []string{"elicit", "sample", "roots"} {
		if seen[question], err = call(ctx, session, to, question, map[string]any{}); err != nil {
			return err
		}
	}
	return nil
}

func resources(ctx context.Context, session *mcp.ClientSession, to visit.Visit, said *heard, seen visit.Seen) error {
	listed, templates := []string{}, []string{}
	for resource, err := range session.Resources(ctx, nil) {
		if err != nil {
			return err
		}
		if uri, ours := strings.CutPrefix(resource.URI, to.URIs); ours {
			listed = append(listed, uri)
		}
	}
	for template, err := range session.ResourceTemplates(ctx, nil) {
		if err != nil {
			return err
		}
		if uri, ours := strings.CutPrefix(template.URITemplate, to.URIs); ours {
			templates = append(templates, uri)
		}
	}
	seen["resources"], seen["templates"] = listed, templates
	for feature, uri := range map[string]string{"read": "memo:///one", "read by template": "memo:///by-id/7"} {
		result, err := session.ReadResource(ctx, &mcp.ReadResourceParams{URI: to.URIs + uri})
		if err != nil {
			return err
		}
		seen[feature] = result.Contents[0].Text
	}
	if !to.Tells("updated") {
		return nil
	}
	if err := session.Subscribe(ctx, &mcp.SubscribeParams{URI: to.URIs + "memo:///one"}); err != nil {
		return err
	}
	if _, err := call(ctx, session, to, "touch", map[string]any{}); err != nil {
		return err
	}
	if err := visit.Await(ctx, said.updated); err != nil {
		return err
	}
	seen["updated"] = true
	return session.Unsubscribe(ctx, &mcp.UnsubscribeParams{URI: to.URIs + "memo:///one"})
}

func prompts(ctx context.Context, session *mcp.ClientSession, to visit.Visit, _ *heard, seen visit.Seen) error {
	listed := []string{}
	for prompt, err := range session.Prompts(ctx, nil) {
		if err != nil {
			return err
		}
		if name, ours := strings.CutPrefix(prompt.Name, to.Names); ours {
			listed = append(listed, name)
		}
	}
	seen["prompts"] = listed
	arguments := map[string]string{"topic": "tea"}
	prompt, err := session.GetPrompt(ctx, &mcp.GetPromptParams{Name: to.Names + "greeting", Arguments: arguments})
	if err != nil {
		return err
	}
	seen["prompt"] = prompt.Messages[0].Content.(*mcp.TextContent).Text
	completed, err := session.Complete(ctx, &mcp.CompleteParams{
		Ref:      &mcp.CompleteReference{Type: "ref/prompt", Name: to.Names + "greeting"},
		Argument: mcp.CompleteParamsArgument{Name: "topic", Value: "mu"},
	})
	if err != nil {
		return err
	}
	seen["completion"] = completed.Completion.Values
	return nil
}

func changes(ctx context.Context, session *mcp.ClientSession, to visit.Visit, said *heard, seen visit.Seen) error {
	if !to.Tells("changes") {
		return nil
	}
	list := func() ([]string, error) { return names(ctx, session, to) }
	for _, feature := range []string{"tools after one came", "tools after it left"} {
		before, err := list()
		if err != nil {
			return err
		}
		if _, err := call(ctx, session, to, "change", map[string]any{}); err != nil {
			return err
		}
		if seen[feature], err = visit.Changed(ctx, said.changed, before, list); err != nil {
			return fmt.Errorf("%s: %w", feature, err)
		}
	}
	return nil
}
