package upstream

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHeadsThatAreRefused(t *testing.T) {
	for _, text := range []string{
		"", "\r\n", "HTTP/1.1\r\n", "HTTP/2.0 200 OK\r\n", "http/1.1 200 OK\r\n", "HTTP/1.1 20 OK\r\n", "HTTP/1.1 2000 OK\r\n",
		"HTTP/1.1 abc OK\r\n", "HTTP/1.1 099 OK\r\n", "HTTP/1.1 +20 OK\r\n",
	} {
		if h, err := parseHead([]byte(text+"\r\n"), "POST"); err == nil {
			t.Errorf("%q is taken for %+v", text, h)
		}
	}
	for _, lines := range []string{
		"X\r\n", ": x\r\n", "X : x\r\n", " X: x\r\n", "X: a\r\n b\r\n", "Xä: x\r\n", "X: a\rb\r\n", "X: a\x00b\r\n",
		"Content-Length: -1\r\n", "Content-Length: +1\r\n", "Content-Length: 1, 1\r\n", "Content-Length: 0x1\r\n",
		"Content-Length: 9223372036854775808\r\n", "Content-Length: 1\r\nContent-Length: 2\r\n", "Content-Length:\r\n",
		"Transfer-Encoding: gzip\r\n", "Transfer-Encoding: chunked, chunked\r\n", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
	} {
		if h, err := parseHead([]byte("HTTP/1.1 200 OK\r\n"+lines+"\r\n"), "POST"); err == nil {
			t.Errorf("%q is taken for %+v", lines, h)
		}
	}
}

func TestHeadsInOddForms(t *testing.T) {
	want := head{status: 200, fields: []Field{{"X-A", "b: c"}, {"X-A", ""}, {"Content-Length", "7"}, {"Content-Length", "7"}}, length: 7, framing: byLength}
	for _, text := range []string{
		"HTTP/1.1 200 OK\r\nX-A: b: c\r\nX-A:\r\nContent-Length: 7\r\nContent-Length: 7\r\n\r\n",
		"HTTP/1.1 200\nx-a:\tb: c \nX-a: \t\ncontent-length:7\nCONTENT-LENGTH:7\n\n",
		"HTTP/1.1  200 \r\nX-A: b: c\r\nX-A: \r\nContent-Length: 7\r\nContent-Length: 7\r\n\r\n",
	} {
		got, err := parseHead([]byte(text), "POST")
		if d := cmp.Diff(want, got, cmp.AllowUnexported(head{})); d != "" || err != nil {
			t.Errorf("%q: %v %s", text, err, d)
		}
	}
}

// What we take for a head, net/http takes for the same head.
func FuzzParseHead(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.0 404 Not Found\nConnection: a, close\n\n",
		"HTTP/1.1 204\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, isHead bool) {
		c := &conn{r: bufio.NewReader(io.MultiReader(bytes.NewReader(text), strings.NewReader("\n\n")))}
		if err := c.readLines(); err != nil {
			t.Fatal(err)
		}
		method := http.MethodPost
		if isHead {
			method = http.MethodHead
		}
		got, err := parseHead(c.head, method)
		if err != nil || got.status == http.StatusSwitchingProtocols {
			return
		}
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(c.head)), &http.Request{Method: method})
		if err != nil {
			t.Fatalf("we read %+v, net/http says %v", got, err)
		}
		type seen struct {
			Status int
			Length int64
			Last   bool
			Header string
		}
		header := http.Header{}
		for _, f := range got.fields {
			header.Add(f.Name, f.Value)
		}
		// net/http takes these out or adds them.
		shown := func(h http.Header) string {
			for _, name := range []string{"Connection", "Content-Length", "Transfer-Encoding", "Trailer", "Cache-Control"} {
				h.Del(name)
			}
			return fmt.Sprint(h)
		}
		encoded := header["Transfer-Encoding"] != nil
		ours := seen{got.status, got.length, got.last, shown(header)}
		theirs := seen{res.StatusCode, res.ContentLength, res.Close, shown(res.Header)}
		if ours.Last && !theirs.Last { // we give up connections that net/http would use
			ours.Last = false
		}
		if res.ProtoMinor == 0 || isHead && encoded { // there, net/http ignores chunks
			ours.Length, theirs.Length = 0, 0
		}
		if d := cmp.Diff(theirs, ours); d != "" {
			t.Errorf("net/http -, ours +\n%s", d)
		}
	})
}
