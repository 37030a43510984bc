// Package tracing makes requests part of distributed traces. It continues the
// trace that a client began (W3C trace context) as far as the engine, with a span
// of the gateway in between, and sends one span per request to a collector over
// OTLP. It is the only package that knows OpenTelemetry. It measures nothing
// itself: a span is made of what the data plane tells of a request.
package tracing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"lmwarden/internal/proxy"
)

// Options are what New needs.
type Options struct {
	// Endpoint is the collector's base address for OTLP over HTTP, as in
	// http://127.0.0.1:4318; required. /v1/traces is added when it is missing.
	Endpoint string
	// Headers go with each export, as a collector's key does.
	Headers map[string]string
	// CA is a PEM file with the certificates that the collector's may be signed by, in
	// place of the system's; empty for those.
	CA string
	// Sample is the share of traces to send, 0 to 1, of requests whose client did
	// not decide: a trace that the client samples is always sent, one that it does
	// not sample never.
	Sample float64
	// Version is that of the gateway.
	Version string
	// Logger is told of spans that were lost; required.
	Logger *slog.Logger
}

const (
	// maxQueued is how many finished spans may wait for the collector. Of some 2 kB
	// each they take 4 MB.
	maxQueued = 2048
	maxBatch  = 512
	// batchFor is how long a span waits for others to be sent with.
	batchFor = 2 * time.Second
	// exportFor bounds the sending of a batch, retries included.
	exportFor = 10 * time.Second
	// maxText bounds each text of a span in bytes: some come from clients.
	maxText = 1024
)

// Tracer implements proxy.Tracer. Safe for concurrent use between Start and Stop.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	out      *sender
	client   *http.Client
}

// New makes a tracer that Start lets run.
func New(o Options) (*Tracer, error) {
	if o.Logger == nil {
		return nil, errors.New("tracing: Options.Logger is missing")
	}
	address, err := url.Parse(o.Endpoint)
	if err != nil || address.Host == "" {
		return nil, fmt.Errorf("tracing: %q is not the address of a collector", o.Endpoint)
	}
	if !strings.HasSuffix(address.Path, "/v1/traces") {
		address = address.JoinPath("v1", "traces")
	}
	trusted, err := trust(o.CA)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	client := &http.Client{Timeout: exportFor, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, IdleConnTimeout: time.Minute, TLSClientConfig: &tls.Config{RootCAs: trusted},
	}}
	exporter, err := otlptracehttp.New(context.Background(),
		otlptracehttp.WithEndpointURL(address.String()),
		otlptracehttp.WithHeaders(o.Headers),
		otlptracehttp.WithHTTPClient(client),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: time.Second, MaxInterval: exportFor / 2, MaxElapsedTime: exportFor,
		}))
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	// The usual environment variables (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES)
	// win over our own attributes.
	about, err := resource.New(context.Background(),
		resource.WithAttributes(attribute.String("service.name", "lmwarden"), attribute.String("service.version", o.Version)),
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("tracing: describe this process: %w", err)
	}
	t := newTracer(o, exporter, about)
	t.client = client
	return t, nil
}

// trust reads whom to trust; nil are those whom the system trusts.
func trust(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read whom to trust: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate; it must be a PEM file", file)
	}
	return pool, nil
}

// newTracer is New with another way out.
func newTracer(o Options, exporter sdk.SpanExporter, about *resource.Resource) *Tracer {
	out := newSender(exporter, o.Logger)
	provider := sdk.NewTracerProvider(
		sdk.WithResource(about),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Sample))),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer("lmwarden"), out: out, client: &http.Client{}}
}

// Start begins to send spans in the background; a collector that is not there is
// no error. Stop must follow.
func (t *Tracer) Start() {
	t.provider.RegisterSpanProcessor(sdk.NewBatchSpanProcessor(t.out,
		sdk.WithMaxQueueSize(maxQueued), sdk.WithMaxExportBatchSize(maxBatch),
		sdk.WithBatchTimeout(batchFor), sdk.WithExportTimeout(exportFor)))
}

// Stop sends what waits, for at most stopFor, and waits for the end of it.
func (t *Tracer) Stop() {
	late := time.AfterFunc(stopFor, t.out.abandon)
	defer late.Stop()
	if err := t.provider.Shutdown(context.Background()); err != nil {
		t.out.log.Warn("tracing did not end cleanly", "error", err.Error())
	}
	t.out.tell()
	t.client.CloseIdleConnections()
}

// The headers of W3C trace context, in canonical form.
const (
	headerParent = "Traceparent"
	headerState  = "Tracestate"
)

// Begin implements proxy.Tracer: the request continues the client's trace or
// begins one, and its headers name our span as the engine's parent.
func (t *Tracer) Begin(arrived time.Time, r *http.Request) proxy.Trace {
	h, ctx := propagation.HeaderCarrier(r.Header), context.Background()
	if states := r.Header[headerState]; len(states) > 1 { // one list, by RFC 9110
		r.Header[headerState] = []string{strings.Join(states, ",")}
	}
	if len(r.Header[headerParent]) == 1 { // several are none, by the specification
		ctx = propagation.TraceContext{}.Extract(ctx, h)
	}
	ctx, span := t.tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(arrived))
	delete(r.Header, headerState) // that of a parent which was not understood belongs to no one
	propagation.TraceContext{}.Inject(ctx, h)
	return &request{span: span, out: t.out, method: r.Method}
}
