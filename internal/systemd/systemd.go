// Package systemd speaks the two small protocols between a service and systemd:
// sockets that were opened before the service starts (sd_listen_fds(3)) and
// notes on how the service is (sd_notify(3)). Without systemd there are no
// sockets and notes go nowhere. It knows nothing of what is served.
package systemd

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// firstFile is the number of the first inherited socket: what follows standard
// input, output and error.
const firstFile = 3

// Listeners returns the sockets that this process inherited, by name
// (FileDescriptorName= in the socket unit); none when there are none. To close
// one is to stop accepting here: systemd keeps the socket open, and connections
// wait in it for the next process.
//
// It takes the sockets over, so only the first call returns them.
func Listeners() (map[string]net.Listener, error) {
	count, names := os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	mine := os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid())
	for _, key := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(key) // what this process starts must not take them for its own
	}
	if !mine || count == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(count, 10, 10)
	if err != nil {
		return nil, fmt.Errorf("inherited sockets: LISTEN_FDS: %w", err)
	}
	named := strings.Split(names, ":")
	all := make(map[string]net.Listener, n)
	fail := func(format string, args ...any) (map[string]net.Listener, error) {
		for _, l := range all {
			l.Close()
		}
		return nil, fmt.Errorf("inherited sockets: "+format, args...)
	}
	for i := range int(n) {
		name := ""
		if i < len(named) {
			name = named[i]
		}
		syscall.CloseOnExec(firstFile + i)
		file := os.NewFile(uintptr(firstFile+i), name)
		l, err := net.FileListener(file) // of a copy
		file.Close()
		if err != nil {
			return fail("number %d, %q, is no stream socket that listens: %w", i+1, name, err)
		}
		if _, twice := all[name]; twice {
			l.Close()
			return fail("two have the name %q", name)
		}
		all[name] = l
	}
	return all, nil
}

// Notify tells systemd of a state, such as "READY=1".
func Notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// The package net takes a leading @ for the abstract name space, as systemd
	// writes it.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// KeepAlive feeds the watchdog (WatchdogSec= in the unit), twice as often as it
// asks for, until ctx ends. It returns at once when there is none.
func KeepAlive(ctx context.Context) {
	us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || us <= 0 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return
	}
	tick := time.NewTicker(max(time.Duration(us)*time.Microsecond/2, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			// A note that is lost is made good by the next one; systemd says what it
			// does when none comes.
			_ = Notify("WATCHDOG=1")
		case <-ctx.Done():
			return
		}
	}
}
