module github.com/redis/rueidis/rueidiscompat

go 1.26.0
