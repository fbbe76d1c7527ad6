// Package visit is what the clients share: the visits they are asked to make, and what they saw.
package visit

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// Patience is how long one visit may take.
const Patience = 60 * time.Second

// Visit is one connection to make: the revision to speak, what stands before the server's names and URIs, and what
// the server can tell of: "updated" resources, and "changes" of its tools.
type Visit struct {
	URL      string   `json:"url"`
	Revision string   `json:"revision"`
	Names    string   `json:"names"`
	URIs     string   `json:"uris"`
	Told     []string `json:"told"`
}

// Tells says whether the server tells of it.
func (v Visit) Tells(what string) bool { return slices.Contains(v.Told, what) }

// Seen is what a visit showed: feature to outcome.
type Seen map[string]any

// Main makes the visits that the argument lists, as JSON, and prints what each showed.
func Main(converse func(context.Context, Visit, Seen) error) {
	var visits []Visit
	if err := json.Unmarshal([]byte(os.Args[1]), &visits); err != nil {
		panic(err)
	}
	all := []Seen{}
	for _, each := range visits {
		seen := Seen{}
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		if err := converse(ctx, each, seen); err != nil {
			seen["broken"] = err.Error()
		}
		cancel()
		all = append(all, seen)
	}
	printed, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(printed))
}

// Await takes one value, or fails when the visit has lasted too long.
func Await(ctx context.Context, told <-chan struct{}) error {
	select {
	case <-told:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("nothing was told: %w", ctx.Err())
	}
}

// Tell notes that something happened; whoever awaits it hears of it once.
func Tell(told chan<- struct{}) {
	select {
	case told <- struct{}{}:
	default:
	}
}

// Changed waits until the list is another than before, and gives it. It lists again each time that a change is told of:
// behind an aggregate that may be a change of another server.
func Changed(ctx context.Context, told <-chan struct{}, before []string, list func() ([]string, error)) ([]string, error) {
	for {
		if err := Await(ctx, told); err != nil {
			return nil, err
		}
		found, err := list()
		if err != nil || !slices.Equal(found, before) {
			return found, err
		}
	}
}

// Until waits until it is so, or the visit has lasted too long: what a server says on the way may be handled after the
// answer that it came before.
func Until(ctx context.Context, so func() bool) {
	for !so() && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}
