package browser

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"lmwarden/e2e/internal/wardentest"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience is how long a page may take to come to what a test waits for. The
// console asks for news each second.
const patience = 20 * time.Second

// chromium starts a browser until the test ends, or skips the test.
func chromium(t *testing.T) context.Context {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU)
		allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
		t.Cleanup(stop)
		browser, end := chromedp.NewContext(allocator)
		t.Cleanup(end)
		if err := chromedp.Do(browser); err != nil {
			t.Fatalf("start %s: %v", path, err)
		}
		return browser
	}
	t.Skip("no chromium, chromium-browser or google-chrome is installed: the console is not opened in a browser")
	return nil
}

// tab is a page in the browser. What it writes to the console as an error and what
// it asks of another host than its own is a failure when the test ends.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu       sync.Mutex
	breaking bool     // the connection is cut on purpose
	problems []string // guarded by mu
}

// open opens a tab on a path of the server at base.
func open(t *testing.T, browser context.Context, base, path string) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(browser)
	p := &tab{t: t, ctx: ctx, base: base}
	t.Cleanup(func() {
		end()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			t.Error(problem)
		}
	})
	if err := chromedp.Listen(ctx, p.listen); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	p.size(1240)
	p.visit(path)
	return p
}

// listen writes down what a page must not do.
func (p *tab) listen(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	complain := func(format string, args ...any) { p.problems = append(p.problems, fmt.Sprintf(format, args...)) }
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if url := e.Request.URL; !strings.HasPrefix(url, p.base+"/") && !strings.HasPrefix(url, "data:") {
			complain("%s asks for %s", e.DocumentURL, url)
		}
	case *runtime.EventExceptionThrown:
		complain("an exception: %s %v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" {
			complain("the page wrote to the console: %v", e.Args)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == "error" && !p.breaking {
			complain("the browser complains: %s %s", e.Entry.Text, e.Entry.URL)
		}
	}
}

// expectBreaks says whether failed requests are on purpose from now on.
func (p *tab) expectBreaks(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.breaking = yes
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, 2*patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatal(err)
	}
}

func (p *tab) visit(path string) {
	p.t.Helper()
	p.do(chromedp.Navigate(p.base + path))
}

func (p *tab) size(width int64) { p.do(chromedp.EmulateViewport(width, 900)) }

// prefer sets the colour scheme that the system prefers.
func (p *tab) prefer(scheme string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// press sends keys, as kb.Tab, to what has the focus.
func (p *tab) press(keys string) {
	p.t.Helper()
	p.do(chromedp.KeyEvent(keys))
}

// eval is the value of a JavaScript expression in the page.
func eval[T any](p *tab, js string) T {
	p.t.Helper()
	v, err := try[T](p, js)
	if err != nil {
		p.t.Fatalf("%s: %v", firstLine(js), err)
	}
	return v
}

func try[T any](p *tab, js string) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, 2*patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](js, chromedp.EvalAwaitPromise))
}

// until waits until a JavaScript expression is true. It fails for a moment while a
// page comes in the place of another.
func (p *tab) until(what, js string) {
	p.t.Helper()
	wardentest.WaitFor(p.t, patience, what, func() error {
		met, err := try[bool](p, "Boolean("+js+")")
		if err == nil && !met {
			err = errors.New("not yet")
		}
		return err
	})
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line[:min(len(line), 120)]
}
