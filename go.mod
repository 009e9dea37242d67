module qtool

go 1.26
