module github.com/valkey-io/valkey-go/valkeycompat

go 1.26.0
