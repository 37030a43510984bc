//go:build unix

package live

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// goneWithin is how long killed processes may take to be gone.
const goneWithin = 10 * time.Second

// errKill is the cause of a context whose command is to be killed at once, and
// not asked to end.
var errKill = errors.New("killed")

// runCommand runs a command of the shell until it ends by itself or ctx does, and
// leaves none of its processes behind: they are a process group of their own, out
// of reach of the terminal's interrupts, and they are gone when nobody holds the
// command's output open any more. When ctx ends, or the shell has, they are told to
// end and killed when their patience is over; at once with errKill as the cause.
// The error is why the shell ended by itself.
func runCommand(ctx context.Context, command string, output io.Writer, patience time.Duration) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	c := exec.Command("sh", "-c", command)
	c.Stdout, c.Stderr = write, write
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = c.Start()
	write.Close()
	if err != nil {
		return err
	}
	signal := func(s syscall.Signal) { _ = syscall.Kill(-c.Process.Pid, s) } // fails when all are gone

	exited, gone := make(chan struct{}), make(chan struct{})
	var ended error
	go func() {
		ended = c.Wait()
		close(exited)
	}()
	go func() {
		_, _ = io.Copy(output, read)
		_, _ = io.Copy(io.Discard, read) // a full disk must not stop an engine
		<-exited
		close(gone)
	}()
	select {
	case <-exited:
	case <-ctx.Done():
	}
	if context.Cause(ctx) == errKill {
		signal(syscall.SIGKILL)
	} else {
		signal(syscall.SIGTERM)
	}
	select {
	case <-gone:
	case <-time.After(patience):
	}
	signal(syscall.SIGKILL) // what holds no output open, too
	select {
	case <-gone:
	case <-time.After(goneWithin):
		read.Close() // somebody left the group and keeps the output open
	}
	<-gone
	if ctx.Err() != nil {
		return nil
	}
	if ended == nil {
		return errors.New("exit status 0")
	}
	return ended
}
