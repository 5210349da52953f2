package wait

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// fanOut bounds the calls that Each makes at once.
const fanOut = 16

// Each calls fn with every item, several at once. It returns when all calls have returned, with the first error, if
// any. An error cancels the context of the other calls.
func Each[T any](ctx context.Context, items []T, fn func(context.Context, T) error) error {
	switch len(items) {
	case 0:
		return nil
	case 1:
		return fn(ctx, items[0])
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for _, it := range items[1:] {
		g.Go(func() error { return fn(ctx, it) })
	}
	err := fn(ctx, items[0])
	if gerr := g.Wait(); gerr != nil {
		return gerr // if both failed, this one may have cancelled the other
	}
	return err
}
