package server

import (
	"context"
	"net"
	"net/http"
)

// connection is what a handler may know of the connection that its request came on.
type connection struct {
	net.Conn
	requests int // until now; its own goroutine counts them
}

type connectionKey struct{}

func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{Conn: c})
}

// connectionOf returns nil for a request that came on no connection.
func connectionOf(r *http.Request) *connection {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}

// resets makes the close of the connection a reset.
func (c *connection) resets() {
	if tcp, ok := c.Conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0) // fails only on a connection that is closed
	}
}
