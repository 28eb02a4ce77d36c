from docs.generate.pages import main

if __name__ == "__main__":
    main()
