//go:build !unix

package live

import (
	"context"
	"errors"
	"io"
	"time"
)

var errKill = errors.New("killed")

func runCommand(context.Context, string, io.Writer, time.Duration) error {
	return errors.New("engines can be started on Unix only")
}
