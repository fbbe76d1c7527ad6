// A client on mcp-go: uses every feature of the servers it visits.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"stagedoor.test/peers/visit"
)

func main() { visit.Main(converse) }

const modern = "2026-07-28"

// person answers what servers ask.
type person struct{}

func (person) Elicit(context.Context, mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	answer := mcp.ElicitationResponse{Action: "accept", Content: map[string]any{"color": "red"}}
	return &mcp.ElicitationResult{ElicitationResponse: answer}, nil
}

func (person) CreateMessage(context.Context, mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	said := mcp.SamplingMessage{Role: mcp.RoleAssistant, Content: mcp.NewTextContent("words")}
	return &mcp.CreateMessageResult{SamplingMessage: said, Model: "m"}, nil
}

func (person) ListRoots(context.Context, mcp.ListRootsRequest) (*mcp.ListRootsResult, error) {
	return &mcp.ListRootsResult{Roots: []mcp.Root{{URI: "file:///home", Name: "home"}}}, nil
}

// conversation is one connection, and what its server said.
type conversation struct {
	*client.Client
	visit.Visit
	visit.Seen
	mutex    sync.Mutex
	progress []any
	listened chan struct{}
	changed  chan struct{}
	updated  chan struct{}
}

func (c *conversation) heard(said mcp.JSONRPCNotification) {
	switch said.Method {
	case "notifications/subscriptions/acknowledged":
		visit.Tell(c.listened)
	case "notifications/tools/list_changed":
		visit.Tell(c.changed)
	case "notifications/resources/updated":
		visit.Tell(c.updated)
	case "notifications/progress":
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.progress = append(c.progress, said.Params.AdditionalFields["progress"])
	}
}

func (c *conversation) steps() []any {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return slices.Clone(c.progress)
}

func converse(ctx context.Context, to visit.Visit, seen visit.Seen) error {
	options := []transport.StreamableHTTPCOption{}
	if to.Revision < modern {
		options = append(options, transport.WithContinuousListening())
	}
	over, err := transport.NewStreamableHTTP(to.URL, options...)
	if err != nil {
		return err
	}
	by := client.NewClient(over, client.WithProtocolVersion(to.Revision), client.WithElicitationHandler(person{}),
		client.WithSamplingHandler(person{}), client.WithRootsHandler(person{}))
	c := &conversation{Client: by, Visit: to, Seen: seen, listened: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		updated: make(chan struct{}, 1)}
	by.OnNotification(c.heard)
	if err := by.Start(ctx); err != nil {
		return err
	}
	defer by.Close()
	hello := mcp.InitializeRequest{}
	hello.Params.ClientInfo = mcp.Implementation{Name: "mcp-go", Version: "1.0.0"}
	result, err := by.Initialize(ctx, hello)
	if err != nil {
		return err
	}
	seen["revision"] = result.ProtocolVersion
	for _, part := range []func(context.Context) error{c.tools, c.questions, c.resources, c.prompts, c.told} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *conversation) call(ctx context.Context, name string, arguments map[string]any) (string, error) {
	request := mcp.CallToolRequest{}
	request.Params.Name = c.Names + name
	request.Params.Arguments = arguments
	request.Params.Meta = &mcp.Meta{ProgressToken: "steps of " + name}
	result, err := c.CallTool(ctx, request)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	said := []string{}
	if result.IsError {
		said = append(said, "isError")
	}
	for _, part := range result.Content {
		if text, ok := part.(mcp.TextContent); ok {
			said = append(said, text.Text)
		}
	}
	return strings.Join(said, " "), nil
}

func (c *conversation) calls(ctx context.Context, names ...string) (err error) {
	for _, name := range names {
		if c.Seen[name], err = c.call(ctx, name, map[string]any{}); err != nil {
			return err
		}
	}
	return nil
}

func (c *conversation) names(ctx context.Context) ([]string, error) {
	listed, err := c.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil {
		return nil, err
	}
	return ours(listed.Tools, c.Names, func(tool mcp.Tool) string { return tool.Name }), nil
}

func ours[T any](listed []T, prefix string, name func(T) string) []string {
	found := []string{}
	for _, each := range listed {
		if rest, our := strings.CutPrefix(name(each), prefix); our {
			found = append(found, rest)
		}
	}
	slices.Sort(found)
	return found
}

func (c *conversation) tools(ctx context.Context) (err error) {
	if c.Seen["tools"], err = c.names(ctx); err != nil {
		return err
	}
	if c.Seen["echo"], err = c.call(ctx, "echo", map[string]any{"value": "grüße"}); err != nil {
		return err
	}
	answered, unknown := c.call(ctx, "no-such-tool", map[string]any{})
	c.Seen["unknown tool"] = answered
	if errors.Is(unknown, mcp.ErrInvalidParams) {
		c.Seen["unknown tool"] = mcp.INVALID_PARAMS
	}
	if err := c.calls(ctx, "fail", "steps"); err != nil {
		return err
	}
	visit.Until(ctx, func() bool { return len(c.steps()) >= 3 })
	c.Seen["progress"] = c.steps()
	return nil
}

func (c *conversation) questions(ctx context.Context) error {
	return c.calls(ctx, "elicit", "sample", "roots")
}

func (c *conversation) resources(ctx context.Context) error {
	listed, err := c.ListResources(ctx, mcp.ListResourcesRequest{})
	if err != nil {
		return err
	}
	templates, err := c.ListResourceTemplates(ctx, mcp.ListResourceTemplatesRequest{})
	if err != nil {
		return err
	}
	c.Seen["resources"] = ours(listed.Resources, c.URIs, func(each mcp.Resource) string { return each.URI })
	c.Seen["templates"] = ours(templates.ResourceTemplates, c.URIs, func(each mcp.ResourceTemplate) string {
		return each.URITemplate.Raw()
	})
	for feature, uri := range map[string]string{"read": "memo:///one", "read by template": "memo:///by-id/7"} {
		request := mcp.ReadResourceRequest{}
		request.Params.URI = c.URIs + uri
		result, err := c.ReadResource(ctx, request)
		if err != nil {
			return err
		}
		c.Seen[feature] = result.Contents[0].(mcp.TextResourceContents).Text
	}
	return nil
}

func (c *conversation) prompts(ctx context.Context) error {
	listed, err := c.ListPrompts(ctx, mcp.ListPromptsRequest{})
	if err != nil {
		return err
	}
	c.Seen["prompts"] = ours(listed.Prompts, c.Names, func(each mcp.Prompt) string { return each.Name })
	request := mcp.GetPromptRequest{}
	request.Params.Name = c.Names + "greeting"
	request.Params.Arguments = map[string]string{"topic": "tea"}
	prompt, err := c.GetPrompt(ctx, request)
	if err != nil {
		return err
	}
	c.Seen["prompt"] = prompt.Messages[0].Content.(mcp.TextContent).Text
	complete := mcp.CompleteRequest{}
	complete.Params.Ref = mcp.PromptReference{Type: "ref/prompt", Name: c.Names + "greeting"}
	complete.Params.Argument = mcp.CompleteArgument{Name: "topic", Value: "mu"}
	completed, err := c.Complete(ctx, complete)
	if err != nil {
		return err
	}
	c.Seen["completion"] = completed.Completion.Values
	return nil
}

// told waits for what the server tells by itself. What happens before a subscription is in force nobody hears of.
func (c *conversation) told(ctx context.Context) error {
	if len(c.Told) == 0 {
		return nil
	}
	uri := c.URIs + "memo:///one"
	if c.Revision >= modern {
		filter := mcp.SubscriptionFilter{ToolsListChanged: c.Tells("changes")}
		if c.Tells("updated") {
			filter.ResourceSubscriptions = []string{uri}
		}
		stop, err := c.ListenAsync(ctx, filter, nil)
		if err != nil {
			return err
		}
		defer stop()
		if err := visit.Await(ctx, c.listened); err != nil {
			return err
		}
	} else if c.Tells("updated") {
		request := mcp.SubscribeRequest{}
		request.Params.URI = uri
		if err := c.Subscribe(ctx, request); err != nil {
			return err
		}
	}
	if c.Tells("updated") {
		if _, err := c.call(ctx, "touch", map[string]any{}); err != nil {
			return err
		}
		if err := visit.Await(ctx, c.updated); err != nil {
			return err
		}
		c.Seen["updated"] = true
	}
	if !c.Tells("changes") {
		return nil
	}
	for _, feature := range []string{"tools after one came", "tools after it left"} {
		before, err := c.names(ctx)
		if err != nil {
			return err
		}
		if _, err := c.call(ctx, "change", map[string]any{}); err != nil {
			return err
		}
		list := func() ([]string, error) { return c.names(ctx) }
		if c.Seen[feature], err = visit.Changed(ctx, c.changed, before, list); err != nil {
			return fmt.Errorf("%s: %w", feature, err)
		}
	}
	return nil
}
