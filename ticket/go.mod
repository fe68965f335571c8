module github.com/go-relock/relock/ticket

go 1.26.0

replace github.com/go-relock/relock => ..

require (
	github.com/go-relock/relock v0.0.0-00010101000000-000000000000
	github.com/golang-jwt/jwt/v5 v5.2.2 // the oldest without CVE-2025-30204
)

require (
	github.com/google/uuid v1.6.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/redis/go-redis/v9 v9.23.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
