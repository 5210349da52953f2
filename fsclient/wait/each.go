package wait

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// fanOut is how many calls Each makes at once.
const fanOut = 16

// Each calls fn with every item, several at once, and returns when all calls have:
// the first error, if any. The context of the other calls ends with an error.
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
