// Command screenshots takes the pictures of docs/screenshots: it runs warden demo,
// lets its agents work for a while, drains and resumes a replica, and photographs
// each page of the console with a headless Chromium. A page that writes an error
// to the browser's console makes it fail.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	warden := flag.String("warden", "bin/warden", "the command to run")
	out := flag.String("out", "docs/screenshots", "folder for the pictures")
	load := flag.Duration("load", 9*time.Minute, "how long the agents work before the pictures")
	agents := flag.String("agents", "10", "how many agents")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *warden, *out, *agents, *load); err != nil {
		fmt.Fprintln(os.Stderr, "screenshots:", err)
		os.Exit(1)
	}
}

// shot is one picture. A path may hold {conversation}.
type shot struct {
	name, path    string
	width, height int
	dark          bool
}

const model = "/models/qwen3-4b-dp4"

var shots = []shot{
	{"overview", "/", 1240, 900, false},
	{"overview-dark", "/", 1240, 900, true},
	{"overview-narrow", "/", 360, 1500, false},
	{"model", model, 1240, 1750, false},
	{"model-dark", model, 1240, 1750, true},
	{"model-narrow", model, 360, 1500, false},
	{"conversations", "/conversations?sort=turns", 1240, 800, false},
	{"conversation", "/conversations/{conversation}", 1240, 900, false},
	{"stats", "/stats?range=15m", 1240, 900, false},
	{"stats-replicas", "/stats?range=15m&group=replica", 1240, 1100, false},
	{"settings", "/settings", 1240, 900, false},
	{"connect", "/connect", 1240, 900, false},
}

// benchmarkShots are taken of a gateway of their own, whose data folder holds
// measurements.
var benchmarkShots = []shot{
	{"benchmarks", "/benchmarks", 1240, 420, false},
	{"benchmark", "/benchmarks/affinity", 1240, 900, false},
	{"comparison", "/benchmarks?run=affinity&run=session-hash", 1240, 900, false},
}

// loginShots are taken of a gateway with a password.
var loginShots = []shot{
	{"login", "/settings", 1240, 520, false},
}

func run(ctx context.Context, warden, out, agents string, load time.Duration) error {
	chromium := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			chromium = path
			break
		}
	}
	if chromium == "" {
		fmt.Println("screenshots: skipped, no chromium, chromium-browser or google-chrome is installed")
		return nil
	}
	scratch, err := os.MkdirTemp("", "warden-screenshots-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	c := camera{chromium, scratch, out}

	demo, err := start(ctx, warden, "demo", "--phase", (load + 10*time.Minute).String(), "--agents", agents)
	if err != nil {
		return err
	}
	defer demo.stop()
	admin, err := demo.await(ctx, `Routing card: (http://[0-9.:]+)/`)
	if err != nil {
		return err
	}
	engine, err := demo.await(ctx, `engine: (http://[0-9.:]+)`)
	if err != nil {
		return err
	}
	if err := call("PATCH", admin+"/api"+model, `{"affinity":"on"}`); err != nil {
		return err
	}
	if err := wait(ctx, load*2/3); err != nil {
		return err
	}
	if err := call("POST", admin+"/api"+model+"/replicas/3/drain", ""); err != nil {
		return err
	}
	if err := wait(ctx, 8*time.Second); err != nil {
		return err
	}
	if err := call("POST", admin+"/api"+model+"/replicas/3/resume", ""); err != nil {
		return err
	}
	if err := wait(ctx, load/3); err != nil {
		return err
	}
	conversation, err := longest(admin)
	if err != nil {
		return err
	}
	for _, s := range shots {
		s.path = strings.ReplaceAll(s.path, "{conversation}", conversation)
		if err := c.take(ctx, admin, s); err != nil {
			return err
		}
	}

	data := filepath.Join(scratch, "data")
	for _, policy := range []string{"affinity", "session-hash"} {
		cmd := exec.CommandContext(ctx, warden, "simulate", "--arms", "off,"+policy, "--sessions", "4,8,16", "--seeds", "4", "--out", filepath.Join(data, "benchmarks", policy))
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("simulate %s: %w\n%s", policy, err, text)
		}
	}
	gateway, err := start(ctx, warden, "serve", "--engine", engine, "--data", data, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer gateway.stop()
	if admin, err = gateway.await(ctx, `listener=admin url=(http://[0-9.:]+)`); err != nil {
		return err
	}
	for _, s := range benchmarkShots {
		if err := c.take(ctx, admin, s); err != nil {
			return err
		}
	}
	return photographLogin(ctx, c, warden, engine)
}

// photographLogin takes pictures of a gateway that asks for a password.
func photographLogin(ctx context.Context, c camera, warden, engine string) error {
	cmd := exec.CommandContext(ctx, warden, "keys", "password")
	cmd.Stdin = strings.NewReader("correct horse\n")
	hash, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("warden keys password: %w", err)
	}
	file := filepath.Join(c.scratch, "warden.yaml")
	text := fmt.Sprintf("listen: 127.0.0.1:0\nadmin:\n  listen: 127.0.0.1:0\n  password: %q\ndata: ':memory:'\nmodels:\n- name: qwen3-4b-dp4\n  engines:\n  - url: %s\n", strings.TrimSpace(string(hash)), engine)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	gateway, err := start(ctx, warden, "serve", "--config", file)
	if err != nil {
		return err
	}
	defer gateway.stop()
	admin, err := gateway.await(ctx, `listener=admin url=(http://[0-9.:]+)`)
	if err != nil {
		return err
	}
	for _, s := range loginShots {
		if err := c.take(ctx, admin, s); err != nil {
			return err
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func call(method, url, body string) error {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, url, res.Status, text)
	}
	return err
}

// longest is the conversation that tells most: moved ones first, then those with
// most turns.
func longest(admin string) (string, error) {
	res, err := http.Get(admin + "/api/conversations?sort=turns&limit=1000")
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var list struct {
		Conversations []struct {
			ID    string
			Turns int
			Moves int
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
		return "", err
	}
	if len(list.Conversations) == 0 {
		return "", errors.New("there is no conversation")
	}
	best := slices.MaxFunc(list.Conversations, func(a, b struct {
		ID    string
		Turns int
		Moves int
	}) int {
		return (a.Moves*100 + a.Turns) - (b.Moves*100 + b.Turns)
	})
	return best.ID, nil
}

// process is a running command with what it wrote.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func start(ctx context.Context, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	<-p.done
}

// await waits until the command wrote what a pattern finds, and returns its first
// group.
func (p *process) await(ctx context.Context, pattern string) (string, error) {
	find := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		p.mu.Lock()
		m := find.FindStringSubmatch(p.text.String())
		p.mu.Unlock()
		if m != nil {
			return m[1], nil
		}
		select {
		case <-p.done:
			return "", fmt.Errorf("%s ended: %s", p.cmd, &p.text)
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return "", fmt.Errorf("%s did not write %s", p.cmd, pattern)
}

// camera is a headless browser.
type camera struct{ chromium, scratch, out string }

func (c camera) take(ctx context.Context, admin string, s shot) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	file := filepath.Join(c.scratch, s.name+".png")
	args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--log-level=0",
		"--user-data-dir=" + filepath.Join(c.scratch, "profile"), fmt.Sprintf("--window-size=%d,%d", s.width, s.height), "--screenshot=" + file}
	if s.dark {
		args = append(args, "--blink-settings=preferredColorScheme=0")
	}
	log, err := exec.CommandContext(ctx, c.chromium, append(args, admin+s.path)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("photograph %s: %w\n%s", s.path, err, log)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, ":CONSOLE") {
			return fmt.Errorf("%s wrote to the browser's console: %s", s.path, line)
		}
	}
	size, err := shrink(file, filepath.Join(c.out, s.name+".png"))
	if err == nil {
		fmt.Printf("%s: %s, %d kB\n", s.name, s.path, size/1000)
	}
	return err
}

// shrink writes a picture with its 256 most frequent colours, which is what a page
// has but for the edges of its letters.
func shrink(from, to string) (int, error) {
	data, err := os.ReadFile(from)
	if err != nil {
		return 0, err
	}
	full, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	counts := map[color.RGBA]int{}
	b := full.Bounds()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			counts[color.RGBAModel.Convert(full.At(x, y)).(color.RGBA)]++
		}
	}
	var colours []color.RGBA
	for c := range counts {
		colours = append(colours, c)
	}
	slices.SortFunc(colours, func(a, b color.RGBA) int {
		if d := counts[b] - counts[a]; d != 0 {
			return d
		}
		return int(a.R)<<16 + int(a.G)<<8 + int(a.B) - int(b.R)<<16 - int(b.G)<<8 - int(b.B)
	})
	var palette color.Palette
	for _, c := range colours[:min(len(colours), 256)] {
		palette = append(palette, c)
	}
	small := image.NewPaletted(b, palette)
	draw.Draw(small, b, full, b.Min, draw.Src)
	var packed bytes.Buffer
	e := png.Encoder{CompressionLevel: png.BestCompression}
	if err := e.Encode(&packed, small); err != nil {
		return 0, err
	}
	return packed.Len(), os.WriteFile(to, packed.Bytes(), 0o666)
}
