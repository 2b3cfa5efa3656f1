module farpage.example/corpus

go 1.19
